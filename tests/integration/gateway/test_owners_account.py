"""A vendor's words about the owner's key and account, which no agent may read."""

from __future__ import annotations

import base64
import json
import logging
import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from gridq.config.settings import Settings
from tests.fakes.http_server import Handler, LocalServer
from tests.gateways import Gateway, serving
from tests.local_grid import LocalGrid
from tests.seat_runners import LlmRunner, llm_grid
from workers.supervisor.embedded_server import EmbeddedServer

KEY = "sk-proj-Q7wE9rT1yU3iO5pA8sD0fG2hJ4kL6zX5678"
SECRETS = (
    KEY,
    KEY.swapcase(),
    f"{KEY[:20]}\n{KEY[20:]}",
    "sk-proj-Q7wE...5678",
    "***5678",
    base64.b64encode(KEY.encode()).decode(),
    "org-a1B2c3D4e5F6",
    "ada.lovelace@corp.example.com",
)
WORDS = "Incorrect API key: " + ", ".join(SECRETS)
FRAGMENTS = ("5678", "q7we9rt1", KEY[20:28].lower(), base64.b64encode(KEY.encode())[4:12].decode().lower(),
             "a1b2c3d4", "lovelace")  # fmt: skip


class Leaky(LocalServer):
    """An endpoint that fails with WORDS: with `status`, or after a stream's first piece if that is 200."""

    def __init__(self) -> None:
        self.status = 400
        super().__init__(_handler(self), "/v1")


def _handler(server: Leaky) -> type[Handler]:
    error = {"error": {"message": f"It failed. {WORDS}", "type": "some_error", "param": WORDS, "code": WORDS}}

    class Leaks(Handler):
        def do_POST(self) -> None:
            self.body()
            if server.status != 200:
                self.answer(server.status, error)
                return
            self.begin_stream()
            first = {"id": "1", "choices": [{"index": 0, "delta": {"role": "assistant", "content": "so "}}]}
            for event in (first, error):
                self.chunk(f"data: {json.dumps(event)}\n\n".encode())
            self.close_connection = True

    return Leaks


@dataclass
class LeakyGrid:
    """A grid whose only seat asks a Leaky endpoint."""

    endpoint: Leaky
    gateway: Gateway
    grid: LocalGrid

    def ask(self, path: str, status: int, *, stream: bool) -> str:
        """Send a request that the endpoint answers with `status`. Return everything that the agent gets."""
        self.endpoint.status = status
        self.grid.sessions["m.api"].breaker.record_success()  # else the third failure in a row would open it
        body = {
            "model": "m",
            "max_tokens": 9,
            "stream": stream,
            "messages": [{"role": "user", "content": "hi"}],
        }
        with self.gateway.http.stream("POST", path, json=body) as reply:
            text = reply.read().decode()
            shown = f"{reply.status_code} {dict(reply.headers)} {text}"
            job = reply.headers.get("x-gridq-job", "")
        assert job, shown
        return shown + self.gateway.http.get(f"/jobs/{job}").text + self.gateway.http.get("/workers").text


@pytest.fixture(scope="module")
def leaky(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LeakyGrid]:
    home = tmp_path_factory.mktemp("home")
    (home / "key").write_text(KEY)
    (home / "key").chmod(0o600)
    config = Settings(
        broker_url=server.url,
        prefix=f"ol{secrets.token_hex(4)}:",
        home=Path(home),
        retry_backoff=0.0,
        max_attempts=1,
    )
    with ExitStack() as stack:
        endpoint = stack.enter_context(Leaky())
        runner = LlmRunner(endpoint.url, [{"name": "m"}], key_file=str(home / "key"))
        grid = stack.enter_context(llm_grid(config, {"m.api": runner}, concurrency=2))
        yield LeakyGrid(endpoint, stack.enter_context(serving(config, admission_wait=0.2)), grid)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
@pytest.mark.parametrize(("status", "stream"), [(400, False), (400, True), (200, True), (500, False)])
def test_an_error_of_an_endpoint_shows_nothing_of_its_owner(
    leaky: LeakyGrid, path: str, status: int, stream: bool
) -> None:
    shown = leaky.ask(path, status, stream=stream)
    assert "It failed. Incorrect API key" in shown  # the rest of the message is the agent's to read
    assert [each for each in FRAGMENTS if each in shown.lower()] == []


def test_an_agent_reads_the_grids_own_words_on_a_rejected_key(
    leaky: LeakyGrid, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "gridq.execution.session"):
        shown = leaky.ask("/v1/chat/completions", 401, stream=False)
    assert "The endpoint rejected the key" in shown
    assert "It failed" not in shown
    assert [each for each in FRAGMENTS if each in shown.lower()] == []
    # the owner's log has the vendor's words, without the key
    assert "It failed" in caplog.text
    assert [each for each in FRAGMENTS if each in caplog.text.lower()] == []
