"""A key that is revoked while its stream is open."""

from __future__ import annotations

import json

from gridq.limits import api_keys
from tests.integration.gateway.conftest import Served
from tests.waiting import wait_for

CHAT = "/v1/chat/completions"


def test_a_revoked_key_finishes_its_stream_and_is_refused_then(served: Served) -> None:
    scripts = served.grid.scripts
    client, keys = scripts.client, scripts.keys
    record, text = api_keys.create(client, keys, "ann")
    key = {"authorization": f"Bearer {text}"}
    body = {"model": "held", "stream": True, "messages": [{"role": "user", "content": "so it goes on"}]}
    http = served.gateway.http
    with http.stream("POST", CHAT, json=body, headers=key) as reply:
        assert reply.status_code == 200, reply.read()
        datas = (line.removeprefix("data: ") for line in reply.iter_lines() if line.startswith("data: "))
        received = []
        for data in datas:
            received.append(data)
            if "so " in data:
                break
        assert http.get("/v1/models", headers=key).status_code == 200
        api_keys.revoke(client, keys, record.id)
        refused = wait_for(
            lambda: http.get("/v1/models", headers=key), true=lambda reply: reply.status_code == 401
        )
        assert refused.json()["error"]["code"] == "auth.key_revoked"
        served.api.go_on.set()
        received += datas
    assert received.pop() == "[DONE]"
    deltas = [choice["delta"] for data in received for choice in json.loads(data)["choices"]]
    assert [delta["content"] for delta in deltas if delta.get("content")] == ["so ", "it ", "goes ", "on "]
    again = http.post(CHAT, json=body, headers=key)
    assert (again.status_code, again.json()["error"]["code"]) == (401, "auth.key_revoked")
