"""Run a graph in this process, for unit tests of graphs: no server, no worker, no seat.

    from gridq.testing import run

    def test_the_briefing():
        answer = run(GRAPH, {"city": "Oslo"}, stages={"llm_complete": lambda value: "It rains."})
        assert answer == "Oslo: It rains."

In: a graph, its input, and what stands in for stages.
Out: the answer, or the error that the grid would give.
Imported by: tests of agents' programs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

from gridq import stages as stage_code
from gridq.config.settings import Settings, settings
from gridq.errors import ConfigError, NoLiveSeat, SeatUnavailable, UnknownStage
from gridq.execution.outcome import classify_failure
from gridq.graph.catalogue import Catalogue, StageSpec, load_directory, make_stage_spec
from gridq.graph.interpreter import Interpreter
from gridq.graph.plan import Plan
from gridq.profiles.profile import StageContext, load_profiles
from gridq.protocol.models import Json, StageCall
from gridq.stages import python
from gridq.store import values
from gridq.submission.planning import compile_text, load_local_catalogue
from gridq.submission.request import encode_graph

__all__ = ["run"]

StandIn = Callable[..., Any]
"""Takes a stage's input (and, if it has the parameter `context`, a StageContext) and returns its output, as
a stage in Python does. It may be async.
"""

Stages = Mapping[str, StandIn] | ModuleType | Path
"""Stand-ins by the names or ids of stages, a module with stages under @stage, or a folder of stage files."""


def run(graph: Json, input: Json = None, *, stages: Stages | Sequence[Stages] = ()) -> Json:
    """Run a graph in this process and return its answer.

    `graph` and `input` are those of `gridq.submit`. `stages` has what runs in place of the stages of that
    name, and stages that are added. Stages in Python and pure built-in stages need none; a stage that needs a
    seat, such as `llm_complete`, does.

    The graph is checked as at a submission, and what a stage is given and returns is checked as on a grid.
    It raises the errors of a grid: GraphError before anything runs, NoLiveSeat if nothing stands in for a
    stage that needs a seat, StageError. If a stage raised, that is the error's `__cause__`. A stage that
    fails by its seat's fault (SeatError) is tried GRIDQ_MAX_ATTEMPTS times. What runs side by side on a grid
    runs here in the order of the graph; delays and timeouts do not apply.
    """
    if not _is_in_event_loop():
        return _run(graph, input, stages)
    with ThreadPoolExecutor(1) as pool:  # an async stage needs a loop of its own
        return pool.submit(_run, graph, input, stages).result()


def _is_in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _run(graph: Json, value: Json, stages: Stages | Sequence[Stages]) -> Json:
    config = settings()
    profiles = load_profiles(config.profiles)
    catalogue, stand_ins = _add_stages(load_local_catalogue(config, profiles), stages)
    data = values.encode(value, limit=config.max_value, what="input", path="input")
    parsed, _, plan = compile_text(encode_graph(graph, config), catalogue, config, profiles)
    _check_runnable(plan, stand_ins)
    runner = _StageRunner(stand_ins, config)
    outcome = Interpreter(catalogue, runner.call).run(parsed.root, values.decode(data))
    for error in outcome.failures.values():
        raise error from error.__context__
    return outcome.value


def _add_stages(
    catalogue: Catalogue, stages: Stages | Sequence[Stages]
) -> tuple[Catalogue, dict[str, python.PythonStage]]:
    """Return the catalogue with the added stages, and the stand-ins by the ids of their stages."""
    stand_ins: dict[str, python.PythonStage] = {}
    for given in [stages] if isinstance(stages, Mapping | ModuleType | Path) else stages:
        if isinstance(given, Path):
            catalogue = catalogue.extend(load_directory(given))
        elif isinstance(given, ModuleType):
            specs = python.list_module_specs(given.__name__)
            if not specs:
                raise ConfigError(
                    f"The module {given.__name__!r} defines no stage",
                    {"path": "stages", "expected": "a module with functions under @stage"},
                )
            catalogue = catalogue.extend(map(StageSpec.from_json, specs))
        elif isinstance(given, Mapping):
            for name, function in given.items():
                if not callable(function):
                    raise ConfigError(
                        f"What stands in for {name!r} is a {type(function).__name__}",
                        {
                            "path": f"stages.{name}",
                            "expected": "a function of the stage's input",
                            "fix": f'write {{"{name}": lambda value: …}}',
                        },
                    )
                try:
                    spec = catalogue.resolve(name)
                except UnknownStage:
                    spec = make_stage_spec(name, "python:stand_in:call")
                    catalogue = catalogue.extend([spec])
                stand_ins[spec.id] = python.find_entry(function) or python.make_stand_in(spec, function)
        else:
            raise ConfigError(
                f"`stages` has a Python object of type {type(given).__name__!r}",
                {
                    "path": "stages",
                    "expected": "a mapping of names to functions, a module, or a pathlib.Path of a folder",
                    "fix": "import the module and pass it, or wrap the folder's name in pathlib.Path"
                    if isinstance(given, str)
                    else 'pass a function under its stage\'s name: {"name": function}',
                },
            )
    return catalogue, stand_ins


def _check_runnable(plan: Plan, stand_ins: Mapping[str, python.PythonStage]) -> None:
    """Raise NoLiveSeat for a stage that needs a seat and has no stand-in."""
    for step in plan.steps:
        for op in step.ops:
            runner = op.implementation.partition(":")[0]
            if op.id in stand_ins or runner == "builtin":
                continue
            try:
                if runner == "python":
                    python.find_stage(op.implementation)
                    continue
                reason = "a test has no seats"
            except SeatUnavailable as exc:
                reason = exc.message
            raise NoLiveSeat(
                f"Nothing runs the stage {op.name!r} here",
                {
                    "path": op.path,
                    "stage": op.name,
                    "queue": step.queue,
                    "reason": reason,
                    "fix": f'pass what stands in for it: stages={{"{op.name}": lambda value: …}}',
                },
            )


class _StageRunner:
    """Runs single stages, with the checks and the attempts that they have on a grid."""

    def __init__(self, stand_ins: Mapping[str, python.PythonStage], config: Settings) -> None:
        self.stand_ins = stand_ins
        self.config = config

    def call(self, spec: StageSpec, value: Json, path: str) -> Json:
        """Return the output of a stage. Raises the error of its last attempt."""
        attempt = 1
        while True:
            try:
                return self._try(spec, value, path, attempt)
            except Exception as exc:
                place = {"path": path, "stage": spec.name, "attempt": attempt}
                failed = classify_failure(exc, place, emitted=False, failures=attempt - 1, backoff=0.0)
                if failed.kind == "stage" or attempt >= self.config.max_attempts:
                    failed.error.__context__ = exc.__context__ if exc is failed.error else exc
                    raise failed.error from failed.error.__context__
                attempt += 1

    def _try(self, spec: StageSpec, value: Json, path: str, attempt: int) -> Json:
        limit = self.config.max_value
        given = values.decode(values.encode(value, limit=limit, path=path))  # a copy, as on a grid
        context = StageContext(job="test", attempt=attempt)
        stand_in = self.stand_ins.get(spec.id)
        if stand_in is not None:
            output = python.call_stage(stand_in, given, context)
        else:
            call = StageCall(id=spec.id, name=spec.name, path=path, implementation=spec.implementation)
            output = stage_code.run_builtin(call, given, context)
        return values.decode(values.encode(output, limit=limit, path=path))
