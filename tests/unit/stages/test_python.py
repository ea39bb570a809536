"""Stages written in Python, in real modules that are imported as an operator's would be."""

from __future__ import annotations

import linecache
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gridq.errors import (
    CapabilityConflict,
    ConfigError,
    JobCancelled,
    OutputTooLarge,
    SeatRateLimited,
    SeatUnavailable,
    StageError,
    UnknownCapability,
    ValueNotJson,
    WrongType,
)
from gridq.graph.catalogue import StageSpec
from gridq.profiles.profile import StageContext, load_profiles
from gridq.protocol import masking
from gridq.protocol.models import Effect, StageCall
from gridq.stages import Gpu, load_modules, run_builtin, stage
from gridq.stages.python import _REGISTRY
from gridq.submission.planning import place_stage
from gridq.telemetry import tracebacks
from gridq.telemetry.redaction import format_traceback

MakeModule = Callable[[str, str], str]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeModule]:
    """Write a module that can be imported during the test: `module("name", source)`."""
    monkeypatch.syspath_prepend(tmp_path)
    before, known = set(sys.modules), dict(_REGISTRY)

    def write(name: str, source: str) -> str:
        file = tmp_path / (name.replace(".", "/") + ".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("from gridq.stages import stage\n" + textwrap.dedent(source))
        return name

    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]
    _REGISTRY.clear()
    _REGISTRY.update(known)


def run(implementation: str, value: Any, context: StageContext | None = None) -> Any:
    call = StageCall(id="0", name="mine", path="root.body", implementation=implementation)
    return run_builtin(call, value, context or StageContext())


@stage
def plain(value: int) -> int:
    """Adds one.

    And nothing else.
    """
    return value + 1


def test_a_decorated_function_stays_callable_and_becomes_a_stage() -> None:
    assert plain(1) == 2
    assert run(f"python:{__name__}:plain", 1) == 2


def test_the_catalogue_reads_the_specs_of_the_decorator(module: MakeModule) -> None:
    name = module(
        "stages_full",
        '''
        @stage(effects=["Network", {"effect": "Cost", "cents": 2}], name="shout",
               input={"kind": "Record", "value": {"text": {"kind": "Text"}}},
               output={"kind": "List", "value": {"kind": "Text"}}, config={"times": 2}, timeout=5)
        def f(value, context):
            """Says it loudly."""
            return [value["text"].upper()] * value["times"]

        @stage
        async def g(value):
            return value
        ''',
    )
    f, g = load_modules((name,))
    assert f == {
        "id": f["id"],
        "name": "shout",
        "description": "Says it loudly.",
        "input": {"kind": "Record", "value": {"text": {"kind": "Text"}}},
        "output": {"kind": "List", "value": {"kind": "Text"}},
        "effects": [{"effect": "Network"}, {"effect": "Cost", "cents": 2}],
        "implementation": "python:stages_full:f",
        "config": {"times": 2},
        "timeout": 5,
    }
    assert g["effects"] == [{"effect": "Unknown"}]
    assert g["input"] == g["output"] == {"kind": "Any"}
    assert [StageSpec.from_json(spec).id for spec in (f, g)] == [f["id"], g["id"]]
    assert run(f["implementation"], {"text": "a", "times": 2}) == ["A", "A"]
    assert run(g["implementation"], [None]) == [None]


def test_the_id_changes_with_the_source_and_the_signature_does_not(
    module: MakeModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Two versions within one second would share a cached bytecode file.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    specs = []
    for body in ("value", "value + 1"):
        name = module("stages_edited", f"@stage\ndef f(value):\n    return {body}\n")
        specs.append(StageSpec.from_json(load_modules((name,))[0]))
        del sys.modules[name]
        linecache.clearcache()
    assert specs[0].id != specs[1].id
    assert specs[0].signature_id == specs[1].signature_id


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("raise KeyError('city')", "KeyError: 'city'"),
        ("raise ValueError", "ValueError"),
        ("import sys; sys.exit('bye')", "SystemExit: bye"),
        ("return f(value)", "RecursionError"),
        ("raise Odd()", "its message cannot be shown"),
    ],
)
def test_an_exception_is_a_stage_error_with_its_type_and_message(
    module: MakeModule, body: str, message: str
) -> None:
    name = module(
        "stages_failing",
        f"""
        class Odd(Exception):
            def __str__(self): raise TypeError("no")

        @stage
        def f(value):
            {body}
        """,
    )
    load_modules((name,))
    with pytest.raises(StageError) as caught:
        run("python:stages_failing:f", 1)
    assert message in str(caught.value.reason)
    assert "f raised" in caught.value.message
    assert "Traceback" not in caught.value.to_json()
    assert caught.value.path == "root.body"
    assert caught.value.__suppress_context__


def test_grid_errors_pass_as_they_are(module: MakeModule) -> None:
    name = module(
        "stages_limited",
        """
        from gridq.errors import SeatRateLimited

        @stage
        def f(value):
            raise SeatRateLimited("slowly", {"retry_after": 3})
        """,
    )
    load_modules((name,))
    with pytest.raises(SeatRateLimited) as caught:
        run("python:stages_limited:f", 1)
    assert caught.value.details == {"retry_after": 3}


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ("{'a': [1, {2}]}", "a set is not JSON at 'a[1]'"),
        ("(1, 2)", "a tuple is not JSON"),
        ("{'a': {1: 2}}", "the key 1 is a int at 'a'"),
        ("[float('nan')]", "nan is not a JSON number at '[0]'"),
        ("own", "contains itself"),
        ("deep", "nested more than 300 levels"),
        ("10 ** 5000", "not JSON"),
        ("b'x'", "a bytes is not JSON"),
        ("iter([1])", "a list_iterator is not JSON"),
    ],
)
def test_a_result_that_is_not_json_is_refused_with_its_place(
    module: MakeModule, result: str, message: str
) -> None:
    name = module(
        "stages_odd",
        f"""
        own = []
        own.append(own)
        deep = []
        for _ in range(1000):
            deep = [deep]

        @stage
        def f(value):
            return {result}
        """,
    )
    load_modules((name,))
    with pytest.raises(ValueNotJson) as caught:
        run("python:stages_odd:f", None)
    assert message in caught.value.message


def test_a_result_over_the_limit_is_refused(module: MakeModule, configure: Any) -> None:
    name = module(
        "stages_large",
        """
        @stage
        def f(value):
            made = ["x"]
            for _ in range(60):
                made = [made, made]
            return made

        @stage
        def g(value):
            return "ü" * 2000
        """,
    )
    configure(max_value=3000)
    load_modules((name,))
    for function in "fg":
        with pytest.raises(OutputTooLarge):
            run(f"python:stages_large:{function}", None)


def test_an_async_stage_ends_when_it_is_cancelled(module: MakeModule) -> None:
    name = module(
        "stages_waiting",
        """
        import asyncio
        import threading

        started = threading.Event()

        @stage
        async def f(value):
            started.set()
            await asyncio.sleep(60)

        @stage
        async def g(value):
            raise asyncio.CancelledError
        """,
    )
    load_modules((name,))
    context = StageContext()
    caught: list[BaseException] = []

    def work() -> None:
        try:
            run("python:stages_waiting:f", None, context)
        except JobCancelled as exc:
            caught.append(exc)

    slot = threading.Thread(target=work)
    slot.start()
    assert sys.modules[name].started.wait(10)
    context.cancel()
    slot.join(10)
    assert not slot.is_alive()
    assert len(caught) == 1
    with pytest.raises(StageError, match="cancelled itself"):
        run("python:stages_waiting:g", None)


@pytest.mark.parametrize("implementation", ["python:os:getcwd", "python:subprocess:run", "python:"])
def test_only_decorated_functions_can_be_called(implementation: str) -> None:
    with pytest.raises(SeatUnavailable, match="not loaded"):
        run(implementation, "x")


def test_a_name_from_the_api_imports_nothing(module: MakeModule, tmp_path: Path) -> None:
    module(
        "stages_unlisted", f"open({str(tmp_path / 'ran')!r}, 'w').close()\n@stage\ndef f(value): return 1\n"
    )
    with pytest.raises(SeatUnavailable, match="GRIDQ_STAGES"):
        run("python:stages_unlisted:f", None)
    assert not (tmp_path / "ran").exists()


def test_a_listed_module_is_imported_when_first_needed(module: MakeModule, configure: Any) -> None:
    module("stages_listed", "@stage\ndef f(value): return 1\n")
    configure(stages="stages_listed")
    assert run("python:stages_listed:f", None) == 1


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import no_such_module_here", "No module named 'no_such_module_here'"),
        ("1 / 0", "ZeroDivisionError"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("def (", "SyntaxError"),
        ("x = 1", "defines no stage"),
        ("@stage\ndef f(): return 1", "because of its parameters"),
        ("@stage\ndef f(a, b): return 1", "because of its parameters"),
        ("def f():\n    @stage\n    def g(value): return 1\nf()", "top level"),
        ("class C:\n    @stage\n    def g(value): return 1", "top level"),
        ("exec('@stage\\ndef f(value): return 1')", "source"),
        ("@stage(input='Txt')\ndef f(value): return 1", "Txt"),
        ("@stage(output=str)\ndef f(value): return 1", "A type must be an object"),
    ],
)
def test_a_module_that_cannot_serve_is_a_config_error_that_names_it(
    module: MakeModule, source: str, message: str
) -> None:
    name = module("stages_wrong", source)
    with pytest.raises(ConfigError) as caught:
        load_modules((name,))
    assert "stages_wrong" in str(caught.value)
    assert message in str(caught.value)
    assert "Traceback" not in str(caught.value)


def test_a_package_with_stages_in_a_submodule_gets_a_fix(module: MakeModule) -> None:
    module("stages_pkg.inner", "@stage\ndef f(value): return 1\n")
    module("stages_pkg.__init__", "import stages_pkg.inner\n")
    with pytest.raises(ConfigError) as caught:
        load_modules(("stages_pkg",))
    assert caught.value.fix == "list 'stages_pkg.inner' instead"


@pytest.mark.parametrize("name", ["", "a b", "../x", "a..b", "1a", "os; x"])
def test_invalid_module_names_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="not a module name"):
        load_modules((name,))


TEXTS = {"kind": "List", "value": {"kind": "Text"}}


@stage(input="Text", output="Number")
def measure(value: Any) -> Any:
    return value if value == "wrong" else len(value)


@stage(input={"kind": "Record", "value": {"texts": TEXTS}})
async def count(value: Any) -> Any:
    return len(value["texts"])


@pytest.mark.parametrize(
    ("name", "value", "expected", "said"),
    [
        ("measure", 7, "Text", "measure's input is Number"),
        ("measure", None, "Text", "measure's input is Null"),
        ("measure", "wrong", "Number", "measure's output is Text"),
        ("count", {"texts": ["a", "b", 3]}, "Text", "count's input at input.texts[2] is Number"),
        ("count", {}, "List<Text>", "count's input at input.texts is missing"),
    ],
)
def test_types_that_a_stage_declares_are_checked_when_it_runs(
    name: str, value: Any, expected: str, said: str
) -> None:
    with pytest.raises(WrongType) as caught:
        run(f"python:{__name__}:{name}", value)
    error = caught.value
    assert (error.code, error.path, error.expected) == ("stage.wrong_type", "root.body", expected)
    assert error.message == said
    assert error.fix


def test_a_value_of_the_declared_type_is_passed_on() -> None:
    assert run(f"python:{__name__}:measure", "four") == 4
    assert run(f"python:{__name__}:count", {"texts": [], "more": 1}) == 0


def raise_deeply(depth: int) -> None:
    if depth:
        raise_deeply(depth - 1)
    raise ValueError("no sk-a1b2c3d4e5f6")


@stage
def break_sync(value: Any) -> Any:
    try:
        raise_deeply(value)
    except ValueError as exc:
        raise RuntimeError("it broke") from exc


@stage
async def break_async(value: Any) -> Any:
    raise_deeply(value)


@pytest.mark.parametrize("name", ["break_sync", "break_async"])
@pytest.mark.parametrize("depth", [0, 200])
def test_an_exception_has_a_traceback_that_stays_out_of_the_error(name: str, depth: int) -> None:
    with pytest.raises(StageError) as caught:
        run(f"python:{__name__}:{name}", depth)
    error = caught.value
    frames = [line for line in error.traceback.splitlines() if line.startswith("  File ")]
    assert len(error.traceback) <= 4001
    assert all("/gridq/stages/" not in frame and "asyncio" not in frame for frame in frames)
    assert frames[-1].startswith(f'  File "{__file__}"')
    assert "a1b2c3d4e5f6" not in error.traceback + str(error)
    assert "test_python" not in error.to_json()  # what another agent gets names no file
    assert error.fix


@stage
def break_at_length(value: Any) -> Any:
    raise ValueError(value * 10_000_000 + " sk-a1b2c3d4e5f6")


def test_a_long_message_costs_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else of the worker runs while it is searched for keys."""
    searched: list[int] = []

    def mask(text: str) -> str:
        searched.append(len(text))
        return masking.mask_credentials(text)

    monkeypatch.setattr(tracebacks, "mask_credentials", mask)
    with pytest.raises(StageError) as caught:
        run(f"python:{__name__}:break_at_length", "x")
    assert max(searched) <= 16_000
    assert "a1b2c3d4e5f6" not in caught.value.traceback


def test_the_log_has_the_places_of_an_exception_but_not_its_words(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(StageError):
        run(f"python:{__name__}:break_async", 1)
    [record] = [each for each in caplog.records if each.exc_info]
    assert record.exc_info is not None
    assert record.exc_info[1] is not None
    text = format_traceback(record.exc_info[1])
    assert text.splitlines()[0].endswith("in break_async")
    assert text.splitlines()[-1] == "ValueError"


def test_a_gpu_effect_has_only_the_fields_that_are_given() -> None:
    assert Gpu().model_dump() == {"effect": "Gpu"}
    given = Gpu(memory_mb=8000, seconds=2.5, backend="cuda", min_compute="8.0", protected=True)
    assert given.fields == {
        "memory_mb": 8000, "seconds": 2.5, "backend": "cuda", "min_compute": "8.0", "protected": True,
    }  # fmt: skip


def test_a_stage_with_a_gpu_effect_goes_to_a_gpu_and_without_that_profile_is_refused(
    module: MakeModule,
) -> None:
    source = """
        from gridq import Gpu
        @stage(effects=[Gpu(memory_mb=18000, seconds=60), "Network"])
        def train(value):
            return value
    """
    (spec,) = map(StageSpec.from_json, load_modules((module("gpu_code", source),)))
    effects = list(spec.effects)
    gpu = load_profiles(("gpu",))
    assert place_stage(spec, effects, "root", gpu).queue == "gpu:any-24g"
    with pytest.raises(UnknownCapability):
        place_stage(spec, effects, "root", {})
    with pytest.raises(CapabilityConflict):  # an llm seat runs no code
        place_stage(spec, [Effect(effect="Llm")], "root", load_profiles(("llm",)))
