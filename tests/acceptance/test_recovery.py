"""Seats and models in cooldown, as their owner sees them, and what ends a cooldown early."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.acceptance.homes import HomeFolder
from tests.fakes.refusing_server import RefusingServer
from tests.waiting import wait_for

SEAT = """
[[llm]]
name = "api"
url = "{url}"
key_file = "{key}"
allow_loopback = true
models = [{{ name = "m" }}, {{ name = "n" }}]
"""
NO_MODEL = {"error": {"message": "The model `m` does not exist.", "code": "model_not_found"}}

Ask = Callable[[str], int]
"""Sends a chat to a model through the gateway; returns the status."""


@contextmanager
def serving(folder: Path, api: RefusingServer) -> Iterator[tuple[HomeFolder, Ask]]:
    """Run `gridq up` with one llm seat at `api`, whose key is in the file `key`."""
    home = HomeFolder(folder, SEAT.format(url=api.url, key=folder / "key"))
    home.configure('profiles = ["llm"]\ndrain = 1\nadmission_wait = 1\n')
    try:
        home.start("up", "--seat", "api", "--no-flower")
        url = home.ready()["gateway"]["url"]
        with httpx.Client(base_url=url, timeout=60) as http:

            def ask(model: str) -> int:
                body = {"model": model, "messages": [{"role": "user", "content": "hello"}]}
                return http.post("/v1/chat/completions", json=body).status_code

            yield home, ask
    finally:
        home.end()


def read_seat(home: HomeFolder) -> dict[str, Any]:
    """Return the seat as `gridq seats` shows it."""
    return next(seat for seat in home.json("seats") if seat["seat"].endswith(".api"))


def test_a_renewed_key_ends_the_rest_by_itself(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("old\n")
    with RefusingServer("new") as api, serving(tmp_path, api) as (home, ask):
        assert ask("m") == 503
        assert api.calls == ["m"]
        assert read_seat(home)["state"] == "key_refused"
        [row] = [row for row in home.json("seat", "status") if row["seat"] == "api"]
        assert row["circuit_breaker"]["state"] == "key_refused"
        (tmp_path / "key").write_text("new\n")
        wait_for(lambda: read_seat(home)["state"] == "ready")
        assert ask("m") == 200
        assert api.calls == ["m", "m"], "otherwise its cooldown is a minute"


def test_a_model_that_rests_is_shown_and_tried_again_at_the_owners_word(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("new\n")
    with RefusingServer("new") as api, serving(tmp_path, api) as (home, ask):
        api.refusals["m"] = (404, NO_MODEL)
        assert ask("m") == 503
        assert ask("n") == 200
        seat = read_seat(home)
        [cooldown] = seat["models_in_cooldown"]
        assert (seat["state"], cooldown["model"], cooldown["queues"]) == ("ready", "m", ["llm:m"])
        assert cooldown["until"] - cooldown["since"] == pytest.approx(60, abs=2)
        assert [model["name"] for model in seat["capability"]["models"]] == ["n"]
        assert "model m is in cooldown" in home("seats").stdout
        assert "model m is in cooldown" in home("seat", "status").stdout
        refused = home("run", str(write_graph(tmp_path)), "--timeout", "40")
        assert "its model m is in cooldown" in refused.stderr
        del api.refusals["m"]
        rows = json.loads(home("seat", "retry", "api", "--json").stdout)
        assert [row["models_in_cooldown"] for row in rows] == [[]]
        assert ask("m") == 200
        assert api.calls == ["m", "n", "m"]
        assert read_seat(home)["models_in_cooldown"] == []


def write_graph(folder: Path) -> Path:
    """Write a graph that asks the model `m`."""
    path = folder / "graph.json"
    stage = {"op": "Stage", "id": "llm_complete", "config": {"prompt": "hello", "model": "m"}}
    path.write_text(json.dumps({"root": stage}))
    return path
