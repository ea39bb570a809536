"""Open requests when a gateway shuts down."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from gridq.protocol.states import JobState
from tests.gateways import serving
from tests.integration.gateway.conftest import Served
from tests.refusals import check_refusal
from tests.waiting import wait_for

HELLO = [{"role": "user", "content": "hello"}]
CHATS = {"/v1/chat/completions": False, "/v1/messages": True}
"""Path → whether a stream is requested, which has no event."""


def test_shutdown_refuses_open_requests_and_cancels_their_jobs(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    before = served.count_requests()
    config = served.config.model_copy(update={"drain": 0.1})

    def ask(path: str) -> httpx.Response:
        body = {"model": "silent", "stream": CHATS[path], "messages": HELLO, "max_tokens": 5}
        return httpx.post(f"{url}{path}", json=body, timeout=60, trust_env=False)

    with ThreadPoolExecutor() as threads:
        with serving(config) as gateway:
            url = gateway.url
            replies = [threads.submit(ask, path) for path in CHATS]
            wait_for(lambda: served.count_requests() == before + len(CHATS))
            jobs = [each.job for each in served.grid.client.jobs(len(CHATS))]
        for each in replies:
            error = check_refusal(each.result(), 503, "gateway.stopping")
            assert (error["bottleneck"], error["retry_after"]) == (
                "this gateway, which is shutting down",
                1.0,
            )
            assert (error["position"], error["fix"]) == (None, "retry at another gateway")
    wait_for(lambda: {served.grid.client.status(job) for job in jobs} == {JobState.CANCELLED})
    assert not [record for record in caplog.records if record.exc_info]


def test_a_stream_cut_off_by_shutdown_is_resumed_at_another_gateway(served: Served) -> None:
    path, body = "/v1/chat/completions", {"model": "silent", "stream": True, "messages": HELLO}
    config = served.config.model_copy(update={"drain": 0.1})
    with httpx.Client(timeout=60, trust_env=False) as client:
        with serving(config, keep_alive=0.05) as gateway:
            asking = client.build_request("POST", gateway.url + path, json=body)
            job = client.send(asking, stream=True).headers["x-gridq-job"]
        assert served.grid.client.status(job) is JobState.RUNNING
    with served.gateway.http.stream("POST", path, json=body, headers={"last-event-id": f"{job}/0"}) as reply:
        assert (reply.status_code, reply.headers["x-gridq-job"]) == (200, job)
    wait_for(lambda: served.grid.client.status(job) is JobState.CANCELLED)
