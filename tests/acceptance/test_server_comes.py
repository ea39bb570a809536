"""Programs whose server is away or loading, at their start and while they run."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from gridq.config.settings import Settings
from gridq.errors import BrokerUnreachable
from tests.fakes.bench_profile import BENCH
from tests.fakes.slow_server import SlowServer
from tests.grid_environment import use_grid
from tests.waiting import wait_for
from workers.supervisor.grid_processes import GridProcesses

pytestmark = pytest.mark.slow


def test_programs_wait_for_a_server_that_starts_and_loads(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir(mode=0o700)
    with SlowServer(tmp_path / "data") as server:
        server.fill().kill()
        config = Settings(
            broker_url=server.url,
            prefix=f"w{secrets.token_hex(3)}:",
            home=tmp_path / "home",
            profiles=(BENCH,),
        )
        home = GridProcesses(config, ["bench"], folder=tmp_path / "logs")
        parts = {name: home.spawn(name) for name in ("router0", "bench")}

        def all_say(words: str) -> bool:
            ended = {name: child.poll() for name, child in parts.items()}
            texts = {name: (tmp_path / "logs" / f"{name}.log").read_text() for name in parts}
            assert set(ended.values()) == {None}, (ended, texts)
            return all(words in text for text in texts.values())

        try:
            wait_for(lambda: all_say("waiting for the server: broker.unreachable: Nothing answers at"))
            server.load_slowly()
            wait_for(lambda: all_say("the server is loading its data"))
            server.hurry()
            with use_grid(config) as client:
                wait_for(client.workers)
                graph = {"root": {"op": "Stage", "id": "bench_echo"}}
                assert client.result(client.submit(graph, "late"), timeout=60) == "late"
                server.load_slowly()
                with pytest.raises(BrokerUnreachable, match="still loading its data"):
                    client.submit(graph, "refused")
                server.hurry()
                wait_for(lambda: server._answers(60))
                assert client.result(client.submit(graph, "again", wait_for_seat=True), timeout=60) == "again"
            assert all_say("the server is loading its data"), "the same processes as before"
        finally:
            home.stop()
