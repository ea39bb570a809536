"""The model of the last resort answers for `any` only while no seat of any other machine does."""

from __future__ import annotations

import os
import secrets
import signal
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from gridq.config.settings import Settings
from tests.fakes.played_server import PlayedServer, answer
from tests.gateways import Gateway, serving
from tests.grid_environment import use_grid
from tests.small_model import NEEDS_SMALL_MODEL
from tests.waiting import wait_for
from workers.supervisor.embedded_server import EmbeddedServer
from workers.supervisor.grid_processes import GridProcesses

pytestmark = [pytest.mark.slow, NEEDS_SMALL_MODEL]

OTHER = """
[[llm]]
name = "api"
url = "{url}"
allow_loopback = true
models = [{{ name = "m" }}]
"""
TOY = "smollm2-135m-instruct"
BACK_SECONDS = 30.0
"""It takes about four seconds: a lease lapses, a sweep, a look. The machine may be busy."""


def ask(gateway: Gateway, model: str = "any") -> str:
    """Return the worker that answered."""
    body = {"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    reply = gateway.http.post("/v1/chat/completions", json=body)
    assert reply.status_code == 200, reply.text
    return reply.headers["x-gridq-worker"].partition("@")[0]


def test_the_last_resort_answers_while_no_other_machine_does(server: EmbeddedServer, tmp_path: Path) -> None:
    homes = [tmp_path / name for name in ("toy", "other")]
    for home in homes:
        home.mkdir(mode=0o700)
    config = Settings(broker_url=server.url, prefix=f"k{secrets.token_hex(4)}:", home=homes[0])
    env = {
        "GRIDQ_SKIP_ENGINES": "1",
        "GRIDQ_ENGINE": "xllamacpp",
        "GRIDQ_DEVICE_BOOKS": str(tmp_path / "books"),
    }
    with ExitStack() as stack:
        endpoint = stack.enter_context(PlayedServer(answer))
        (homes[0] / "seats.toml").write_text("[gpu]\ngpus = false\nprompt_cache_mb = 0\n")
        (homes[1] / "seats.toml").write_text(OTHER.format(url=endpoint.url))
        client = stack.enter_context(use_grid(config, env))

        def serve_any() -> set[str]:
            return {seat.seat.partition(".")[2] for seat in client.seats() if "llm:any" in seat.queues}

        stack.enter_context(GridProcesses(config, ["cpu"], folder=tmp_path / "toy-logs", env=env))
        gateway = stack.enter_context(serving(config))
        gateway.http.timeout = 120
        wait_for(lambda: serve_any() == {"cpu"})
        assert ask(gateway) == "cpu"

        own = config.model_copy(update={"home": homes[1]})
        others = GridProcesses(
            own, ["api"], routers=0, folder=tmp_path / "other-logs", env={**env, "GRIDQ_HOME": str(homes[1])}
        )
        stack.enter_context(others)
        wait_for(lambda: serve_any() == {"api"}, BACK_SECONDS)
        assert [ask(gateway) for _ in range(3)] == ["api"] * 3
        assert ask(gateway, TOY) == "cpu", "by its name it is always there"
        assert endpoint.calls == 3

        worker = others.children["api"]
        os.kill(worker.pid, signal.SIGKILL)
        worker.wait()
        began = time.monotonic()
        assert ask(gateway) == "cpu", "a request waits for the seconds in which nobody serves its queue"
        assert time.monotonic() - began < BACK_SECONDS

        others.spawn("api")
        wait_for(lambda: serve_any() == {"api"}, BACK_SECONDS)
        assert ask(gateway) == "api"
