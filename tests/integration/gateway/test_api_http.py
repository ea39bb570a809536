"""The model APIs over HTTP: headers, malformed requests, disconnecting clients, resumed streams."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import Any

import httpx
import pytest

from gridq.protocol.states import JobState
from gridq.store.connection import connect
from tests.builders import stage
from tests.integration.gateway.conftest import Served
from tests.waiting import wait_for

CHAT = "/v1/chat/completions"


def body(model: str = "echo", text: str = "so it goes on", **more: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": text}], **more}


def frames(text: str) -> list[dict[str, str]]:
    """Return the fields of each event of a stream."""
    found = []
    for block in text.split("\n\n"):
        lines = [line.partition(": ") for line in block.split("\n") if line and not line.startswith(":")]
        if lines:
            found.append({name: value for name, _, value in lines})
    return found


def words(events: list[dict[str, str]]) -> list[str]:
    deltas = [json.loads(event["data"]) for event in events if event["data"] != "[DONE]"]
    return [
        choice["delta"]["content"]
        for delta in deltas
        for choice in delta["choices"]
        if choice["delta"].get("content")
    ]


def state_of(served: Served, job: str) -> JobState | None:
    return served.grid.client.status(job)


def open_stream(served: Served, model: str = "slow", **headers: str) -> tuple[Any, str]:
    """Return a stream that has begun and must be closed, and its job."""
    request = served.gateway.http.build_request("POST", CHAT, json=body(model, stream=True), headers=headers)
    reply = served.gateway.http.send(request, stream=True)
    assert reply.status_code == 200
    return reply, reply.headers["x-gridq-job"]


# -- responses ------------------------------------------------------------------------------------


def test_a_response_has_headers_about_its_job(http: httpx.Client, served: Served) -> None:
    reply = http.post(CHAT, json=body(), headers={"x-request-id": "mine-1"})
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["x-request-id"] == "mine-1"
    assert reply.headers["x-gridq-worker"] == "m.api"
    assert float(reply.headers["x-gridq-queue-wait-ms"]) >= 0
    assert "x-gridq-cost-cents" not in reply.headers, "no price is known for the model, which is not 0"
    assert state_of(served, reply.headers["x-gridq-job"]) is JobState.DONE
    view = http.get(f"/jobs/{reply.headers['x-gridq-job']}").json()
    assert (view["micro_dollars"], view["spent_cents"], view["result"]["spent_cents"]) == (None, None, None)
    assert [(row["tokens_in"], row["micro_dollars"]) for row in view["rows"]] == [(4, None)]


def test_a_stream_is_framed_and_not_buffered(http: httpx.Client) -> None:
    reply = http.post(CHAT, json=body(stream=True))
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert reply.headers["cache-control"] == "no-cache"
    assert reply.headers["x-accel-buffering"] == "no"
    job = reply.headers["x-gridq-job"]
    assert ": x-gridq-worker: m.api\n" in reply.text
    assert "x-gridq-cost-cents" not in reply.text
    events = frames(reply.text)
    assert words(events) == ["so ", "it ", "goes ", "on "]
    assert events[-1]["data"] == "[DONE]"
    assert all(event["id"].startswith(f"{job}/") for event in events)
    assert len({event["id"] for event in events}) == len(events)


def test_anthropics_events_are_named_by_their_types(http: httpx.Client) -> None:
    reply = http.post("/v1/messages", json=body(max_tokens=9, stream=True), headers={"x-api-key": "none"})
    events = frames(reply.text)
    assert [event["event"] for event in events] == [json.loads(event["data"])["type"] for event in events]
    assert events[-1]["event"] == "message_stop"


def test_a_silent_stream_sends_comments(served: Served) -> None:
    reply, job = open_stream(served, "silent")
    try:
        assert next(reply.iter_lines()) == ": keep-alive"
    finally:
        reply.close()
    wait_for(lambda: state_of(served, job), true=lambda state: state is JobState.CANCELLED)


def test_an_error_after_the_response_head_is_the_last_event(served: Served) -> None:
    reply, job = open_stream(served, "silent")
    served.gateway.ask("DELETE", f"/jobs/{job}", 200)
    error = json.loads(frames(reply.read().decode())[-1]["data"])["error"]
    assert (reply.status_code, error["code"]) == (200, "job.cancelled")


def test_curl_reads_a_stream(served: Served) -> None:
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("curl is not installed")
    done = subprocess.run(
        [curl, "-sSN", f"{served.url}{CHAT}", "-H", "Content-Type: application/json",
         "-d", json.dumps(body(stream=True))],
        capture_output=True, text=True, check=True, timeout=30,
    )  # fmt: skip
    assert words(frames(done.stdout)) == ["so ", "it ", "goes ", "on "]


# -- options in headers ------------------------------------------------------------------------------------


def test_the_headers_become_the_options_of_the_job(http: httpx.Client, served: Served) -> None:
    headers = {
        "x-gridq-priority": "batch", "x-gridq-deadline": "60", "x-gridq-queue-timeout": "30",
        "x-gridq-session": "s1", "x-gridq-name": "my job", "x-gridq-prefer": "m.api",
        "x-gridq-avoid": "m.other, m.third", "x-gridq-pin": "m.api", "x-gridq-budget-cents": "12.5",
        "x-gridq-agent": "ann",
    }  # fmt: skip
    reply = http.post(CHAT, json=body(), headers=headers)
    assert reply.status_code == 200, reply.text
    view = served.grid.client.view(reply.headers["x-gridq-job"])
    assert (view.agent, view.name, view.priority) == ("ann", "my job", "batch")
    assert view.deadline is not None
    assert 50 < view.deadline - view.submitted <= 60


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("x-gridq-priority", "urgent"),
        ("x-gridq-deadline", "soon"),
        ("x-gridq-deadline", "0"),
        ("x-gridq-deadline", "-1"),
        ("x-gridq-deadline", "nan"),
        ("x-gridq-queue-timeout", "1e9999"),
        ("x-gridq-budget-cents", "much"),
        ("x-gridq-session", "two words"),
        ("x-gridq-name", "a" * 65),
        ("x-gridq-pin", "=m.api"),
        ("x-gridq-prefer", "a,b"),
        ("x-gridq-avoid", "m.a,,m.b"),
        ("x-gridq-detach", "perhaps"),
        ("x-gridq-wait-for-seat", "perhaps"),
        ("x-gridq-agent", "two words"),
        ("x-gridq-prioirty", "batch"),
        ("idempotency-key", "é"),
        ("last-event-id", "17"),
    ],
)
def test_a_malformed_header_is_named(http: httpx.Client, served: Served, header: str, value: str) -> None:
    before = served.count_requests()
    reply = http.post(CHAT, json=body(), headers={header.encode(): value.encode("latin-1")})
    assert reply.status_code == 400, reply.text
    assert header in reply.json()["error"]["message"] + str(reply.json()["error"]["param"])
    assert served.count_requests() == before


def test_a_repeated_header_is_refused(http: httpx.Client) -> None:
    reply = http.post(CHAT, json=body(), headers=[("x-gridq-session", "a"), ("x-gridq-session", "b")])
    assert reply.status_code == 400


# -- malformed bodies --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"{", b"null", b"[]", b'"x"', b"{}", b'{"model": 1}', b'{"model": ""}', b'{"model": null}',
        b'{"model": "echo", "stream": "yes"}', b'{"model": "echo", "x": NaN}', b'{"model": "\\ud800"}',
        b'{"model": "\xff"}', '{"model": "echo"}'.encode("utf-16"), b'{"model": "a\\u0000"}',
        b'{"model": "' + b"a" * 300 + b'"}', b'{"model": "echo", "x": ' + b"[" * 200 + b"]" * 200 + b"}",
        b"[" * 100_000, b'{"model": "echo", "x": ' + b"9" * 5000 + b"}",
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/v1/embeddings"])
def test_an_invalid_body_is_refused_in_the_apis_format(
    http: httpx.Client, served: Served, path: str, raw: bytes
) -> None:
    before = served.count_requests()
    reply = http.post(path, content=raw, headers={"content-type": "application/json"})
    assert reply.status_code == 400, reply.text
    error = reply.json()
    assert error["error"]["type"] == "invalid_request_error"
    assert error["error"]["code"]
    assert (path == "/v1/messages") == (error.get("type") == "error")
    assert reply.headers["x-request-id"]
    assert served.count_requests() == before


def test_a_byte_order_mark_is_ignored(http: httpx.Client) -> None:
    reply = http.post(CHAT, content=b"\xef\xbb\xbf" + json.dumps(body()).encode())
    assert reply.status_code == 200, reply.text


def test_a_body_that_is_too_large(http: httpx.Client, served: Served) -> None:
    for path, limit in ((CHAT, 32 * 1024 * 1024), ("/jobs", served.config.max_value)):
        reply = http.post(path, content=b" " * (limit + 1))
        assert reply.status_code == 413, path
        assert http.post(path, content=b" " * limit).status_code == 400


def test_a_long_body_and_a_long_answer_pass_whole(http: httpx.Client) -> None:
    text = "x" * 200_000
    reply = http.post(CHAT, json=body(text=text))
    assert reply.json()["choices"][0]["message"]["content"] == text + " "
    assert words(frames(http.post(CHAT, json=body(text=text, stream=True)).text)) == [text + " "]


def test_another_method_is_refused(http: httpx.Client) -> None:
    reply = http.get(CHAT)
    assert reply.status_code == 405
    assert reply.json()["error"]["code"] == "request.method"


# -- clients that go away ----------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
def test_a_disconnecting_client_cancels_its_job_and_the_call(
    served: Served, http: httpx.Client, stream: bool
) -> None:
    served.api.disconnected.clear()
    model = "slow" if stream else "silent"
    if stream:
        reply, job = open_stream(served)
        next(reply.iter_lines())
        reply.close()
    else:
        before = served.count_requests()
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{served.url}{CHAT}", json=body(model), timeout=httpx.Timeout(5, read=0.5))
        assert served.count_requests() == before + 1
        job = served.grid.client.jobs(1)[0].job
    wait_for(lambda: state_of(served, job), true=lambda state: state is JobState.CANCELLED)
    assert served.api.disconnected.wait(10)


def test_a_detached_client_leaves_its_job_running(served: Served) -> None:
    reply, job = open_stream(served, **{"x-gridq-detach": "1"})
    lines = reply.iter_lines()
    first = next(line for line in lines if line.startswith("id: ")).removeprefix("id: ")
    reply.close()
    headers = {"last-event-id": first}
    with served.gateway.http.stream("POST", CHAT, json=body(stream=True), headers=headers) as again:
        assert again.headers["x-gridq-job"] == job
        assert next(line for line in again.iter_lines() if line.startswith("id: ")) != f"id: {first}"
    wait_for(lambda: state_of(served, job), true=lambda state: state is JobState.CANCELLED)


def test_an_idempotency_key_finds_the_job_of_a_client_that_lost_its_connection(
    served: Served, http: httpx.Client
) -> None:
    headers = {"idempotency-key": "k-17"}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            f"{served.url}{CHAT}", json=body("silent"), headers=headers, timeout=httpx.Timeout(5, read=0.5)
        )
    job = served.grid.client.jobs(1)[0].job
    request = served.gateway.http.build_request("POST", CHAT, json=body("silent"), headers=headers)
    request.extensions["timeout"] = {"connect": 5, "read": 0.5, "write": 5, "pool": 5}
    with pytest.raises(httpx.ReadTimeout):
        served.gateway.http.send(request)
    assert served.grid.client.jobs(1)[0].job == job
    assert state_of(served, job) is JobState.RUNNING
    assert http.post(CHAT, json=body("echo"), headers=headers).status_code == 409
    served.grid.client.cancel(job)


def test_equal_requests_with_one_key_run_once(served: Served, http: httpx.Client) -> None:
    before = served.count_requests()
    replies = [http.post(CHAT, json=body(), headers={"idempotency-key": "k-18"}) for _ in range(3)]
    assert [reply.status_code for reply in replies] == [200] * 3
    assert len({reply.headers["x-gridq-job"] for reply in replies}) == 1
    assert len({reply.content for reply in replies}) == 1
    assert served.count_requests() == before + 1


def test_the_endpoints_address_is_not_disclosed(http: httpx.Client, served: Served) -> None:
    reply = http.post(CHAT, json=body("cut-first", stream=True))
    job = reply.headers["x-gridq-job"]
    for text in (reply.text, http.get(f"/jobs/{job}").text, http.get(f"/jobs/{job}/events").text):
        assert "attempts_exhausted" in text
        assert served.api.url not in text
    assert served.grid.client.view(job).error["details"]["endpoint"] == served.api.url


# -- resumed streams ---------------------------------------------------------------------------------------


def test_a_stream_is_resumed_after_any_of_its_events(http: httpx.Client) -> None:
    whole = frames(http.post(CHAT, json=body(stream=True)).text)
    for place, event in enumerate(whole[:-1]):
        again = http.post(CHAT, json=body(stream=True), headers={"last-event-id": event["id"]})
        assert frames(again.text) == whole[place + 1 :]
    job = whole[0]["id"].partition("/")[0]
    from_the_beginning = http.post(CHAT, json=body(stream=True), headers={"last-event-id": f"{job}/0"})
    assert frames(from_the_beginning.text) == whole
    for place in (whole[-1]["id"], f"{job}/99999999999999999"):
        behind = http.post(CHAT, json=body(stream=True), headers={"last-event-id": place})
        assert frames(behind.text) == [{"id": place, "data": "[DONE]"}], "it has ended, and says so again"


def test_resuming_an_unknown_job_fails(http: httpx.Client) -> None:
    reply = http.post(CHAT, json=body(stream=True), headers={"last-event-id": "gone/1-1"})
    assert reply.status_code == 404
    assert reply.json()["error"]["code"] == "job.not_found"


def test_a_job_of_another_path_is_not_resumed(http: httpx.Client, served: Served) -> None:
    graph = {"root": stage("text_template", template="x")}
    messages = body(stream=True, max_tokens=9)
    jobs = {
        "a graph": served.gateway.post("/jobs", {"graph": graph, "stream": True}, 202)["job"],
        "no stream": http.post(CHAT, json=body()).headers["x-gridq-job"],
        "the other API": http.post("/v1/messages", json=messages).headers["x-gridq-job"],
        "another path": http.post(
            "/v1/completions", json={"model": "echo", "prompt": "a", "stream": True}
        ).headers["x-gridq-job"],
    }
    for what, job in jobs.items():
        reply = http.post(CHAT, json=body(stream=True), headers={"last-event-id": f"{job}/0"})
        assert reply.status_code == 400, what
        assert reply.json()["error"]["param"] == "last-event-id"
    reply = http.post("/v1/messages", json=messages, headers={"last-event-id": jobs["the other API"] + "/0"})
    assert [event["event"] for event in frames(reply.text)][-1] == "message_stop"


@pytest.mark.parametrize("entry", ["00", "0-1", "1", "1-9"])
def test_an_entry_before_the_first_event_is_the_beginning(http: httpx.Client, entry: str) -> None:
    whole = http.post(CHAT, json=body(stream=True))
    place = f"{whole.headers['x-gridq-job']}/{entry}"
    again = http.post(CHAT, json=body(stream=True), headers={"last-event-id": place})
    assert frames(again.text) == frames(whole.text)


def test_resuming_before_trimmed_events_fails(http: httpx.Client, served: Served) -> None:
    reply = http.post(CHAT, json=body(stream=True))
    events = frames(reply.text)
    job = reply.headers["x-gridq-job"]
    client = connect(served.config.broker_url.get_secret_value(), name="tests")
    try:
        client.xtrim(served.grid.scripts.keys("stream", job), maxlen=3, approximate=False)
    finally:
        client.close()
    for place in (f"{job}/0", events[0]["id"]):
        again = http.post(CHAT, json=body(stream=True), headers={"last-event-id": place})
        assert again.status_code == 410
        assert again.json()["error"]["code"] == "stream.trimmed"
    rest = http.post(CHAT, json=body(stream=True), headers={"last-event-id": events[-3]["id"]})
    assert frames(rest.text) == events[-2:]


def test_a_stream_is_complete_though_its_result_has_expired(http: httpx.Client, served: Served) -> None:
    reply = http.post(CHAT, json=body(stream=True))
    events = frames(reply.text)
    client = connect(served.config.broker_url.get_secret_value(), name="tests")
    try:
        assert client.unlink(served.grid.scripts.keys("result", reply.headers["x-gridq-job"])) == 1
    finally:
        client.close()
    again = http.post(CHAT, json=body(stream=True), headers={"last-event-id": events[0]["id"]})
    assert frames(again.text) == events[1:]


def test_the_endpoint_gets_the_bodys_text_unchanged(http: httpx.Client, served: Served) -> None:
    text = '{"messages":[{"role":"user","content":"\\u00fc \\ud83d\\ude00 1.0e2"}],"model":"echo","t":1.50}'
    assert http.post(CHAT, content=text.encode()).status_code == 200
    sent = served.api.requests[-1]["body"]
    assert sent["messages"] == json.loads(text)["messages"]
    assert sent["t"] == 1.5
