"""Engines that start after gridq: looked for at their usual ports, cheaply."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.engine_servers import FakeModel, FakeOllama, FakeVllm
from tests.fakes.http_server import Handler, LocalServer
from workers.profiles.gpu import GpuProfile
from workers.profiles.gpu.running_engines.engine_offers import SKIP_VARIABLE
from workers.profiles.gpu.running_engines.finding import MAX_LOOKS, NewEngines
from workers.supervisor.embedded_server import find_free_port


class Other(Handler):
    """A program that is no engine."""

    asked = 0

    def do_GET(self) -> None:
        type(self).asked += 1
        self.answer(404, {"error": "not found"})


class StartingVllm(FakeVllm):
    """One that answers 404 to everything until it has started."""

    has_started = False

    def get(self, path: str, query: dict[str, str]) -> tuple[int, Any] | None:
        return super().get(path, query) if self.has_started else None


def test_an_engine_is_new_once() -> None:
    port = find_free_port()
    engines = NewEngines([port])
    assert not engines.look()
    with FakeVllm(FakeModel("org/m"), port=port) as engine:
        assert engines.look()
        asked = len(engine.asked)
        assert not engines.look()
        assert len(engine.asked) == asked, "it is not asked again while it listens"
    assert not engines.look()
    with FakeVllm(FakeModel("org/m"), port=port):
        assert engines.look(), "it has come back"


def test_one_without_models_is_new_when_it_has_some() -> None:
    with FakeOllama() as engine:
        engines = NewEngines([engine.port])
        assert not engines.look()
        engine.models = [FakeModel("org/m")]
        assert engines.look()


def test_one_that_is_not_known_while_it_starts_is_new_when_it_has_started() -> None:
    with StartingVllm(FakeModel("org/m")) as engine:
        engines = NewEngines([engine.port])
        for _ in range(MAX_LOOKS - 1):
            assert not engines.look()
        engine.has_started = True
        assert engines.look()
        assert not engines.look()


def test_a_program_that_is_no_engine_is_left_alone() -> None:
    with LocalServer(Other) as server:
        engines = NewEngines([int(server.url.rpartition(":")[2])])
        for _ in range(MAX_LOOKS):
            assert not engines.look()
        asked = Other.asked
        assert asked
        assert not engines.look()
        assert Other.asked == asked


def test_nothing_is_looked_for_where_the_search_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SKIP_VARIABLE, "1")
    assert GpuProfile().look_for_seats() is None
    monkeypatch.setenv(SKIP_VARIABLE, "0")
    assert GpuProfile().look_for_seats() is not None
