"""Stages written in Python: the decorator, the registry, and the lookup by name."""

from __future__ import annotations

import importlib
import inspect
import logging
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeVar, overload

from gridq.config.settings import settings
from gridq.errors import ConfigError, GraphError, GridError, SeatUnavailable, StageError, WrongType
from gridq.graph import types as graph_types
from gridq.graph.catalogue import StageSpec
from gridq.profiles.profile import StageContext
from gridq.protocol.masking import mask_credentials
from gridq.protocol.models import Effect, Json
from gridq.stages import child_processes
from gridq.stages.coroutines import run_coroutine
from gridq.stages.output_check import check_result
from gridq.telemetry.tracebacks import drop_own_frames, format_user_traceback

log = logging.getLogger(__name__)

PREFIX = "python:"
MAX_REASON_CHARACTERS = 2000
"""The characters of an exception's message that are kept."""

MAX_TYPE_CHARACTERS = 200
"""The characters of a type that an error shows."""

F = TypeVar("F", bound=Callable[..., Any])
Effects = str | Mapping[str, Json] | Effect | Sequence[str | Mapping[str, Json] | Effect]
Type = str | Mapping[str, Json]

_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


@dataclass(frozen=True)
class PythonStage:
    """A decorated function and its specification."""

    function: Callable[..., Any]
    spec: dict[str, Json]
    source: str
    takes_context: bool

    @cached_property
    def input(self) -> graph_types.Type:
        return graph_types.parse_type(self.spec["input"], "input")

    @cached_property
    def output(self) -> graph_types.Type:
        return graph_types.parse_type(self.spec["output"], "output")


_REGISTRY: dict[str, dict[str, PythonStage]] = {}
"""The registered stages by module and qualified name; nothing else is ever called for an implementation."""


@overload
def stage(function: F, /) -> F: ...
@overload
def stage(
    *,
    effects: Effects = ...,
    name: str | None = ...,
    input: Type = ...,
    output: Type = ...,
    description: str | None = ...,
    config: Mapping[str, Json] | None = ...,
    timeout: float | None = ...,
) -> Callable[[F], F]: ...


def stage(
    function: F | None = None,
    /,
    *,
    effects: Effects = "Unknown",
    name: str | None = None,
    input: Type = "Any",  # the graph format's name for it
    output: Type = "Any",
    description: str | None = None,
    config: Mapping[str, Json] | None = None,
    timeout: float | None = None,
) -> F | Callable[[F], F]:
    """Turn a function into a stage: `@stage`, or `@stage(effects="Pure", input="Text")`.

    The function takes the input value and, if it has a parameter `context`, the StageContext. It may be
    async, and you can still call it directly. `effects` are names or records of the graph format; without
    them a stage may do anything (`Unknown`). `input` and `output` are types of the format; "Text" is short
    for `{"kind": "Text"}`. `name` defaults to the function's name, and `description` to the first line of its
    docstring. `config` holds defaults of the stage's options. `timeout` is in seconds.

    Raises ConfigError for a function that other processes cannot find (a nested function or a method), or
    that has other parameters.
    """

    def register(function: F) -> F:
        where = f"{function.__module__}:{function.__qualname__}"
        if not re.fullmatch(r"[^\W\d]\w*", function.__qualname__):
            raise ConfigError(
                f"{where} cannot be a stage",
                {
                    "path": where,
                    "expected": "a function at the top level of its module",
                    "fix": "define it there, with a name: not in a function, and not as a lambda",
                },
            )
        spec: dict[str, Json] = {
            "name": name or function.__name__,
            "description": description or (inspect.getdoc(function) or "").partition("\n")[0],
            "input": _parse_type(input),
            "output": _parse_type(output),
            "effects": _parse_effects(effects),
            "implementation": PREFIX + where,
        }
        if config:
            spec["config"] = dict(config)
        if timeout is not None:
            spec["timeout"] = timeout
        entry = PythonStage(function, spec, _read_source(function, where), _takes_context(function, where))
        _REGISTRY.setdefault(function.__module__, {})[function.__qualname__] = entry
        return function

    return register if function is None else register(function)


def _parse_type(given: Type) -> Json:
    return {"kind": given} if isinstance(given, str) else dict(given) if isinstance(given, Mapping) else given


def _parse_effects(given: Effects) -> list[Json]:
    several = [given] if isinstance(given, str | Mapping | Effect) else given
    return [
        {"effect": one}
        if isinstance(one, str)
        else one.model_dump()
        if isinstance(one, Effect)
        else dict(one)
        for one in several
    ]


def _read_source(function: Callable[..., Any], where: str) -> str:
    try:
        return textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        raise ConfigError(
            f"The source of {where} cannot be read", {"path": where, "expected": "a module with a file"}
        ) from None


def _takes_context(function: Callable[..., Any], where: str) -> bool:
    parameters = list(inspect.signature(function).parameters.values())
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    others = [
        part for part in parameters[1:] if part.name != "context" and part.default is inspect.Parameter.empty
    ]
    if not parameters or parameters[0].kind not in positional or others:
        raise ConfigError(
            f"{where} cannot be a stage because of its parameters",
            {
                "path": where,
                "expected": "one parameter for the input value, and optionally `context`",
                "fix": "read the others from the input record, or give them defaults",
            },
        )
    return any(part.name == "context" for part in parameters[1:])


def load_modules(names: tuple[str, ...]) -> list[dict[str, Json]]:
    """Import the modules `names`, as GRIDQ_STAGES lists them, and return their stages' specifications.

    Each includes its id, which covers the function's source. Raises ConfigError if a module cannot be
    imported, or defines no stage itself: the queue of a stage is named after the module that defines it.
    """
    specs: list[dict[str, Json]] = []
    for name in names:
        if not _MODULE.fullmatch(name):
            raise ConfigError(
                f"{name!r} is not a module name", {"path": "GRIDQ_STAGES", "expected": "my_pkg.stages"}
            )
        try:
            importlib.import_module(name)
        except (Exception, SystemExit) as exc:
            reason = f"{type(exc).__name__}: {exc}"
            raise ConfigError(
                f"Cannot import the module {name!r}: {reason}",
                {
                    "path": "GRIDQ_STAGES",
                    "reason": reason,
                    "fix": "install it, or add its folder to PYTHONPATH",
                },
            ) from None
        if name not in _REGISTRY:
            inner = sorted(module for module in _REGISTRY if module.startswith(name + "."))
            raise ConfigError(
                f"The module {name!r} defines no stage",
                {
                    "path": "GRIDQ_STAGES",
                    "expected": "a module with functions under @stage",
                    "fix": f"list {inner[0]!r} instead"
                    if inner
                    else "decorate a function with gridq.stages.stage",
                },
            )
        specs += list_module_specs(name)
    return specs


def list_module_specs(name: str) -> list[dict[str, Json]]:
    """Return the specifications of the stages that the imported module `name` defines."""
    return [_add_id(entry) for entry in _REGISTRY.get(name, {}).values()]


def find_entry(function: Callable[..., Any]) -> PythonStage | None:
    """Return the stage that @stage made of `function`, or None."""
    where = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    entry = _REGISTRY.get(where[0], {}).get(where[1])
    return entry if entry is not None and entry.function is function else None


def make_stand_in(spec: StageSpec, function: Callable[..., Any]) -> PythonStage:
    """Return a stage that calls `function` under the name and types of `spec`, as if it were under @stage.

    Raises ConfigError if it has other parameters than a stage.
    """
    record = {"name": spec.name, "input": spec.input.to_json(), "output": spec.output.to_json()}
    return PythonStage(function, record, "", _takes_context(function, spec.name))


def _add_id(entry: PythonStage) -> dict[str, Json]:
    where = str(entry.spec["implementation"])
    try:
        read = StageSpec.from_json(entry.spec, where, entry.source)
    except GraphError as exc:
        raise ConfigError(
            f"The @stage arguments of {where} are invalid: {exc.message}", exc.details
        ) from None
    return {**entry.spec, "id": read.id}


def find_stage(implementation: str) -> PythonStage:
    """Return the registered stage of `implementation` (`python:module:qualname`).

    Only modules in GRIDQ_STAGES are imported. Raises SeatUnavailable if this machine does not have the stage.
    """
    module, _, qualname = implementation.removeprefix(PREFIX).partition(":")
    if module not in _REGISTRY and module in settings().stages:
        load_modules((module,))
    entry = _REGISTRY.get(module, {}).get(qualname)
    if entry is None:
        raise make_not_loaded_error(implementation)
    return entry


def parse_module(implementation: str) -> str:
    """Return the module of `implementation` (`python:module:qualname`)."""
    return implementation.removeprefix(PREFIX).partition(":")[0]


def make_not_loaded_error(implementation: str) -> SeatUnavailable:
    """Return the error of a stage that this machine does not have."""
    module = parse_module(implementation)
    return SeatUnavailable(
        f"The stage {implementation.removeprefix(PREFIX)} is not loaded on this machine",
        {
            "expected": "a function decorated with @stage, in a module that GRIDQ_STAGES names",
            "fix": f"add {module} to GRIDQ_STAGES on every machine that runs it, in the same version",
        },
    )


def call_python(implementation: str, value: Json, context: StageContext) -> Json:
    """Call the function for `value` and return its result; raise StageError if it raises.

    Raises WrongType if the input or the result is not of the type that the stage declares, ValueNotJson and
    OutputTooLarge if the result cannot be passed on. The processes that it started are killed if `context`
    is cancelled.
    """
    return call_stage(find_stage(implementation), value, context)


def call_stage(entry: PythonStage, value: Json, context: StageContext) -> Json:
    """Do the same for a stage that was found."""
    _check_type(entry, value, "input")
    extra = {"context": context} if entry.takes_context else {}
    try:
        with child_processes.kill_children_on_cancel(context):
            if inspect.iscoroutinefunction(entry.function):
                result = run_coroutine(entry.function(value, **extra), context)
            else:
                result = entry.function(value, **extra)
    except GridError:
        raise
    except (Exception, SystemExit) as exc:
        reason = _describe_exception(exc)
        error = StageError(
            f"{entry.spec['name']} raised {reason}",
            {
                "reason": reason,
                "fix": "correct the stage's code or its input; `gridq job` and the worker's log have the "
                "traceback",
            },
        )
        error.traceback = format_user_traceback(exc)
        # Without lines of code and messages, which may contain what an agent sent.
        exc.__traceback__ = drop_own_frames(exc.__traceback__)
        log.error("the stage %s raised %s", entry.spec["name"], type(exc).__name__, exc_info=exc)
        raise error from None
    output = check_result(result)
    _check_type(entry, output, "output")
    return output


def _check_type(entry: PythonStage, value: Json, what: Literal["input", "output"]) -> None:
    """Raise WrongType if `value` is not of the type that the stage declares for `what`."""
    found = graph_types.find_mismatch(value, getattr(entry, what), what)
    if found is None:
        return
    place, wanted, got = found
    where = f"{entry.spec['name']}'s {what}" + (f" at {place}" if place != what else "")
    raise WrongType(
        f"{where} is missing" if got is None else f"{where} is {str(got)[:MAX_TYPE_CHARACTERS]}",
        {
            "expected": str(wanted)[:MAX_TYPE_CHARACTERS],
            "fix": "give the stage such a value, or correct `input` in its @stage"
            if what == "input"
            else "return such a value, or correct `output` in its @stage",
        },
    )


def _describe_exception(exc: BaseException) -> str:
    try:
        text = str(exc)
    except Exception:
        text = "(its message cannot be shown)"
    # What it says goes to the agent that submitted the job, which must not see the author's keys.
    text = mask_credentials(text[: 2 * MAX_REASON_CHARACTERS])
    return f"{type(exc).__name__}: {text}"[:MAX_REASON_CHARACTERS] if text else type(exc).__name__
