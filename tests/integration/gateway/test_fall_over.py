"""Several seats serve one model: if one fails before its first token, another one answers; if it fails later,
the caller gets the error.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import httpx
import pytest

from gridq.config.settings import Settings
from gridq.protocol.models import HistoryRow
from tests.fakes.openai_server import OpenAIServer
from tests.gateways import Gateway, serving
from tests.local_grid import LocalGrid
from tests.seat_runners import LlmRunner, llm_grid
from tests.waiting import wait_for
from workers.supervisor.embedded_server import EmbeddedServer, find_free_port

TEXT = " ".join(f"w{number}" for number in range(30))
CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
BEFORE = ("status-500", "status-429", "cut-first", "error-event", "malformed")
"""Faults of `m.bad` before its first token; each is the name of a model."""
AFTER = ("cut", "error-late")
REFUSED = "refused"
"""The fault of `m.shut`: its endpoint refuses connections."""


@dataclass
class Seats:
    """A gateway before `m.good`, whose only slot can be made busy, and seats that fail."""

    gateway: Gateway
    grid: LocalGrid
    good: OpenAIServer
    bad: OpenAIServer
    pool: ThreadPoolExecutor

    def ask(self, path: str, model: str, text: str, *, name: str = "", pin: str = "", stream: bool = False
    ) -> httpx.Response:  # fmt: skip
        body = {"model": model, "messages": [{"role": "user", "content": text}], "stream": stream}
        headers = {"x-gridq-name": name, "x-gridq-pin": pin}
        return self.gateway.http.post(
            path,
            json={**body, "max_tokens": 999},
            headers={header: value for header, value in headers.items() if value},
        )

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Keep the slot of `m.good` busy within the block."""
        self.good.go_on.clear()
        self.good.started.clear()
        held = self.pool.submit(self.ask, CHAT, "held", "one two", pin="m.good", stream=True)
        wait_for(lambda: self.good.started.is_set() or held.done())
        assert not held.done(), held.result().text
        self.good.requests.clear()
        try:
            yield
        finally:
            self.good.go_on.set()
            assert held.result(30).status_code == 200

    def fall_over(self, path: str, fault: str, *, stream: bool) -> httpx.Response:
        """Return the answer to a request that a failing seat has taken first."""
        name = f"n{secrets.token_hex(4)}"
        for session in self.grid.sessions.values():
            session.breaker.record_success()  # else the third failure in a row would open it
        with self.busy():
            reply: Future[httpx.Response] = self.pool.submit(
                self.ask, path, f"as-{fault}", TEXT, name=name, stream=stream
            )
            wait_for(lambda: self.rows(name))
        return reply.result(30)

    def rows(self, name: str) -> list[HistoryRow]:
        """Return the rows of the job of this name."""
        client = self.grid.client
        return [row for job in client.jobs(5) if job.name == name for row in client.rows(job.job)]

    def tried(self, reply: httpx.Response) -> list[tuple[str, str]]:
        """Return the worker and the state of each attempt of a reply's job."""
        rows = self.grid.client.rows(reply.headers["x-gridq-job"])
        return [(row.worker, row.state) for row in rows]


@pytest.fixture(scope="module")
def seats(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seats]:
    config = Settings(
        broker_url=server.url,
        prefix=f"f{secrets.token_hex(4)}:",
        home=tmp_path_factory.mktemp("home"),
        retry_backoff=0.0,
    )
    with ExitStack() as stack:
        good, bad = stack.enter_context(OpenAIServer()), stack.enter_context(OpenAIServer())
        every = [f"as-{fault}" for fault in (*BEFORE, *AFTER, REFUSED)]
        runners = {
            "m.good": LlmRunner(good.url, [{"name": "echo", "families": every}, {"name": "held"}]),
            "m.bad": LlmRunner(
                bad.url, [{"name": fault, "families": [f"as-{fault}"]} for fault in (*BEFORE, *AFTER)]
            ),
            "m.shut": LlmRunner(
                f"http://127.0.0.1:{find_free_port()}/v1", [{"name": "echo", "families": [f"as-{REFUSED}"]}]
            ),
        }
        grid = stack.enter_context(llm_grid(config, runners, concurrency=1))
        pool = stack.enter_context(ThreadPoolExecutor(2))
        gateway = stack.enter_context(serving(config))
        yield Seats(gateway, grid, good, bad, pool)


def text_of(path: str, reply: httpx.Response) -> str:
    """Return the text of an answer, whole or streamed, in either API format."""
    if reply.headers["content-type"] == "application/json":
        answer = reply.json()
        content = answer["choices"][0]["message"]["content"] if path == CHAT else answer["content"][0]["text"]
        return str(content)
    datas = [line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: ")]
    events = [json.loads(data) for data in datas if data != "[DONE]"]
    if path == CHAT:
        assert datas[-1] == "[DONE]"
        return "".join(choice["delta"].get("content") or "" for each in events for choice in each["choices"])
    kinds = [each["type"] for each in events if each["type"] != "ping"]
    assert kinds[0] == "message_start"
    assert kinds.count("message_start") == kinds.count("message_stop") == 1
    assert kinds[-1] == "message_stop"
    return "".join(each["delta"].get("text", "") for each in events if each["type"] == "content_block_delta")


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("path", [CHAT, MESSAGES])
@pytest.mark.parametrize("fault", ["status-500", REFUSED])
def test_another_seat_answers_after_a_failure(seats: Seats, fault: str, path: str, stream: bool) -> None:
    reply = seats.fall_over(path, fault, stream=stream)
    assert reply.status_code == 200, reply.text
    assert text_of(path, reply).split() == TEXT.split()
    first = "m.shut" if fault == REFUSED else "m.bad"
    assert seats.tried(reply) == [(first, "failed"), ("m.good", "done")]
    assert len(seats.good.requests) == 1


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
@pytest.mark.parametrize("fault", [fault for fault in BEFORE if fault != "status-500"])
def test_another_seat_streams_after_a_failure_before_the_first_token(
    seats: Seats, fault: str, path: str
) -> None:
    reply = seats.fall_over(path, fault, stream=True)
    assert reply.status_code == 200, reply.text
    assert text_of(path, reply).split() == TEXT.split()
    assert seats.tried(reply) == [("m.bad", "failed"), ("m.good", "done")]


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
@pytest.mark.parametrize("fault", AFTER)
def test_a_failure_after_the_first_token_is_reported_and_not_retried(
    seats: Seats, fault: str, path: str
) -> None:
    reply = seats.fall_over(path, fault, stream=True)
    assert reply.status_code == 200
    datas = [line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: ")]
    error = json.loads(datas[-1])["error"]
    assert error.get("gridq_code", error["code"]) == "stage.stream_cut"
    assert {"[DONE]", "message_stop"}.isdisjoint(reply.text.split())
    assert ("one " if fault == "cut" else TEXT.split()[0]) in "".join(datas[:-1])
    assert seats.tried(reply) == [("m.bad", "failed")]
    assert seats.good.requests == []
