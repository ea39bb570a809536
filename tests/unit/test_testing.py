"""`gridq.testing.run`: graphs in this process, with the answers and errors of a grid."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gridq.config.settings import Settings, settings
from gridq.errors import (
    AttemptsExhausted,
    ConfigError,
    GridError,
    NoLiveSeat,
    SeatUnavailable,
    StageError,
)
from gridq.protocol import queue_names
from gridq.stages import stage
from gridq.store.connection import connect
from gridq.testing import run
from tests.builders import seq
from tests.builders import stage as st
from tests.local_grid import LocalGrid
from workers.supervisor.embedded_server import EmbeddedServer

GREETING = {
    "root": seq(
        {
            "op": "Parallel",
            "branches": {
                "plain": st("text_template", template="Hello {{name}}"),
                "model": st("llm_complete", prompt="Greet Ada."),
            },
        },
        st("text_template", template="{{plain}} / {{model}}"),
    )
}


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("GRIDQ_HOME", str(tmp_path))
    monkeypatch.delenv("GRIDQ_URL", raising=False)
    settings.cache_clear()
    yield
    settings.cache_clear()


def test_a_function_stands_in_for_a_model() -> None:
    given: list[Any] = []

    def model(value: Any) -> str:
        given.append(value)
        return "Hi!"

    assert run(GREETING, {"name": "Ada"}, stages={"llm_complete": model}) == "Hello Ada / Hi!"
    assert given == [{"name": "Ada", "prompt": "Greet Ada."}]


def test_a_stage_that_needs_a_seat_and_has_no_stand_in_is_named() -> None:
    with pytest.raises(NoLiveSeat) as caught:
        run(GREETING, {"name": "Ada"})
    assert (caught.value.code, caught.value.path) == ("seat.none_live", "root.stages[0].branches.model")
    assert 'stages={"llm_complete"' in (caught.value.fix or "")


@stage(input="Text", output="Text")
def test_shout(value: str) -> str:
    return value.upper()


test_shout.__test__ = False  # type: ignore[attr-defined]


@pytest.mark.parametrize("graph", [{"root": st("own")}, json.dumps({"root": st("own")})])
def test_a_stage_is_added_whatever_kind_of_function_it_is(graph: Any) -> None:
    async def wait(value: Any, context: Any) -> Any:
        await asyncio.sleep(0)
        return [value, context.attempt]

    assert run(graph, 3, stages={"own": lambda value: value + 1}) == 4
    assert run(graph, 3, stages={"own": wait}) == [3, 1]
    assert run(graph, "a", stages={"own": test_shout}) == "A"


def test_a_module_and_a_folder_add_their_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "louder.json").write_text(
        json.dumps(
            {
                "name": "louder", "implementation": "builtin:text_template", "config": {"template": "{{.}}!"},
                "input": {"kind": "Text"}, "output": {"kind": "Text"}, "effects": ["Pure"],
            }
        )
    )  # fmt: skip
    (tmp_path / "stages_of_a_test.py").write_text(
        "from gridq import stage\n@stage\ndef own(v):\n  return [v]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import stages_of_a_test  # type: ignore[import-not-found]

    assert run({"root": st("own")}, 1, stages=stages_of_a_test) == [1]
    graph = {"root": seq(st("own"), st("join"))}
    both = [stages_of_a_test, tmp_path / "files", {"join": lambda value: value[0]}]
    assert run(graph, "a", stages=both) == "a"


def test_what_a_stage_gets_is_its_own() -> None:
    def change(value: Any) -> Any:
        value["a"].append(1)
        return value

    given = {"a": [0]}
    graph = {
        "root": {"op": "Fanout", "source": {"op": "Const", "value": {"a": []}}, "targets": [st("change")] * 2}
    }
    assert run(graph, stages={"change": change}) == [{"a": [1]}] * 2
    assert run({"root": st("change")}, given, stages={"change": change}) == {"a": [0, 1]}
    assert given == {"a": [0]}


def test_an_exception_is_the_cause_of_the_stages_error() -> None:
    def fail(value: Any) -> Any:
        raise KeyError(value)

    with pytest.raises(StageError) as caught:
        run({"root": st("fail")}, "x", stages={"fail": fail})
    assert (caught.value.code, caught.value.path) == ("stage.failed", "root")
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_retry_starts_again_and_a_seat_that_fails_is_tried_as_often_as_on_a_grid() -> None:
    calls: list[int] = []

    def flaky(value: Any) -> Any:
        calls.append(1)
        if len(calls) < 3:
            raise ValueError
        return len(calls)

    graph = {"root": {"op": "Retry", "max_attempts": 3, "delay_ms": 60_000, "stage": st("flaky")}}
    assert run(graph, stages={"flaky": flaky}) == 3

    def unavailable(value: Any) -> Any:
        calls.append(1)
        raise SeatUnavailable("it is away")

    calls.clear()
    with pytest.raises(AttemptsExhausted) as caught:
        run({"root": st("away")}, stages={"away": unavailable})
    assert len(calls) == Settings().max_attempts
    assert isinstance(caught.value.__cause__, SeatUnavailable)


def test_it_may_be_called_within_an_event_loop() -> None:
    async def wait(value: Any) -> Any:
        await asyncio.sleep(0)
        return value

    async def main() -> Any:
        return run({"root": st("wait")}, 1, stages={"wait": wait})

    assert asyncio.run(main()) == 1


@pytest.mark.parametrize(
    ("stage_name", "stages", "fix"),
    [
        ("text_template", (), '"config": {"template": …}'),
        ("own", "my_stages", "import the module"),
        ("own", [7], '{"name": function}'),
        ("odd", Path("stages"), "'Network'"),
    ],
)
def test_a_mistake_is_told_with_its_fix(
    stage_name: str, stages: Any, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    any_type = {"kind": "Any"}
    odd = {"name": "odd", "implementation": "builtin:length", "input": any_type, "output": any_type}
    Path("stages").mkdir()
    Path("stages/odd.json").write_text(json.dumps({**odd, "effects": ["Netwrok"]}))
    with pytest.raises(GridError) as caught:
        run({"root": st(stage_name)}, {"name": "Ada"}, stages=stages)
    assert fix in caught.value.details["fix"]


@pytest.mark.parametrize(
    ("stages", "path"), [({"own": "x"}, "stages.own"), ("my_stages", "stages"), ([json], "stages")]
)
def test_wrong_stages_are_named(stages: Any, path: str) -> None:
    with pytest.raises(ConfigError) as caught:
        run({"root": st("own")}, stages=stages)
    assert (caught.value.code, caught.value.path) == ("config.invalid", path)


CASES: dict[str, tuple[Any, Any]] = {
    "an answer": (seq(st("test_shout"), st("length")), "abc"),
    "a wrong input": (st("test_shout"), 3),
    "a failing stage": (st("parse_json"), "{"),
    "a failing branch": (
        {
            "op": "Branch",
            "predicate": st("equals", to=1),
            "if_true": st("parse_json"),
            "if_false": st("length"),
        },
        1,
    ),
    "the other branch": (
        {
            "op": "Branch",
            "predicate": st("equals", to=1),
            "if_true": st("parse_json"),
            "if_false": st("length"),
        },
        "ab",
    ),
    "a missing value": (st("text_template", template="{{a}}"), {}),
    "a missing option": (st("text_template"), {}),
    "a misspelt option": (st("text_template", templat="a"), {}),
    "an unknown stage": (st("nope"), {}),
    "an unknown operator": ({"op": "Stge"}, {}),
    "types that do not fit": (seq({"op": "Const", "value": 1}, st("test_shout")), None),
    "no JSON": (st("length"), {1, 2}),
    "a host": (st("http_get", url="http://example.com/"), None),
    "no model": (st("llm_complete", prompt="a"), None),
}


@pytest.fixture(scope="module")
def grid(server: EmbeddedServer) -> Iterator[LocalGrid]:
    config = Settings(broker_url=server.url, prefix="ttest:", stages=(__name__,), retry_backoff=0.0)
    client = connect(server.url)
    queues = [queue_names.LOCAL, queue_names.make_module_queue(__name__)]
    with LocalGrid(client, config, {"m.router": [queue_names.PURE], "m.local": queues}) as grid:
        yield grid
    for key in client.scan_iter("ttest:*", count=1000):
        client.unlink(key)


def end(act: Callable[[], Any]) -> tuple[Any, ...]:
    """Return the answer, or the class, the code and the place of the error."""
    try:
        return ("answer", act())
    except GridError as exc:
        return (type(exc), exc.code, exc.path, exc.expected, exc.message)


@pytest.mark.parametrize("case", CASES)
def test_a_graph_ends_as_on_a_grid(grid: LocalGrid, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRIDQ_STAGES", __name__)
    settings.cache_clear()
    root, value = CASES[case]
    found = end(lambda: run({"root": root}, value))
    expected = end(lambda: grid.client.run({"root": root}, value, timeout=30))
    if found[0] is NoLiveSeat:
        assert found[:2] == expected[:2]
    else:
        assert found == expected
