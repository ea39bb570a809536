"""The next turn of a conversation goes to the seat that had the last one, though no request says so."""

from __future__ import annotations

import secrets
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest

from gridq.config.settings import Settings
from tests.fakes.played_server import PlayedServer, answer
from tests.gateways import serving
from tests.grid_environment import use_grid
from tests.waiting import wait_for
from workers.supervisor.embedded_server import EmbeddedServer
from workers.supervisor.grid_processes import GridProcesses

pytestmark = pytest.mark.slow

SEAT = """
[[llm]]
name = "{name}"
url = "{url}"
allow_loopback = true
models = [{{ name = "m" }}]
"""
TRIES = 10
"""It is a preference: on a busy machine the other seat may take a turn first. Without the preference, the
seat that has been idle longest would be woken, so no two turns in a row would have the same seat.
"""


@pytest.mark.parametrize("path", ["chat/completions", "messages", "responses"])
def test_the_next_turn_goes_to_the_seat_of_the_last_one(
    server: EmbeddedServer, tmp_path: Path, path: str
) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    config = Settings(broker_url=server.url, prefix=f"k{secrets.token_hex(4)}:", home=home)
    with ExitStack() as stack:
        endpoint = stack.enter_context(PlayedServer(answer))
        (home / "seats.toml").write_text("".join(SEAT.format(name=n, url=endpoint.url) for n in "ab"))
        client = stack.enter_context(use_grid(config))
        stack.enter_context(GridProcesses(config, ["a", "b"], folder=tmp_path / "logs"))
        gateway = stack.enter_context(serving(config))

        def ask(messages: list[dict[str, str]], prefer: str = "") -> str:
            """Return the seat that answered, asked once both are idle."""
            wait_for(lambda: client.redis.zcard(client.keys("idle", "llm:m")) == 2)
            field = "input" if path == "responses" else "messages"
            body = {"model": "m", field: messages, **({"max_tokens": 9} if path == "messages" else {})}
            headers = {"x-gridq-prefer": prefer} if prefer else {}
            reply = gateway.http.post(f"/v1/{path}", json=body, headers=headers)
            assert reply.status_code == 200, reply.text
            return reply.headers["x-gridq-worker"].partition("@")[0]

        def find_seats() -> dict[str, str]:
            return {seat.seat.partition(".")[2]: seat.seat for seat in client.seats() if seat.kind == "llm"}

        seats = wait_for(lambda: found if len(found := find_seats()) == 2 else {})
        turns = [[{"role": "user", "content": f"What is {number} and {number}?"}] for number in range(6)]
        first = [ask(turn, seats["aaabbb"[number]]) for number, turn in enumerate(turns)]
        more = [{"role": "assistant", "content": "ok"}, {"role": "user", "content": "Are you sure?"}]
        for turn, last in zip(turns, first, strict=True):
            seats_of_turns = [last, *(ask(turn + more) for _ in range(TRIES))]
            assert any(one == next_one for one, next_one in pairwise(seats_of_turns)), seats_of_turns
        stored = str(client.redis.hgetall(client.keys("sessions", "default")))
        assert stored.count("@@") == 6
        assert "What" not in stored
