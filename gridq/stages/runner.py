"""Run the stages that need no profile: built-in stages and stages written in Python."""

from __future__ import annotations

from collections.abc import Callable

from gridq.errors import StageError
from gridq.profiles.profile import StageContext
from gridq.protocol.models import Json, StageCall
from gridq.stages.http import http_get, remote_stage
from gridq.stages.output_check import check_size
from gridq.stages.pure.functions import FUNCTIONS, run_pure
from gridq.stages.python import PREFIX, call_python

BUILTIN = "builtin:"

NETWORK_STAGES: dict[str, Callable[[Json, StageContext], Json]] = {
    "http_get": http_get,
    "remote_stage": remote_stage,
}
"""The built-in stages that call other hosts, by the part of their implementation after `builtin:`."""


def is_pure(implementation: str) -> bool:
    """Return whether `implementation` is a pure built-in stage, which any slot or router may run."""
    return implementation.startswith(BUILTIN) and implementation.removeprefix(BUILTIN) in FUNCTIONS


def run_builtin(call: StageCall, value: Json, context: StageContext) -> Json:
    """Run a `builtin:` or `python:` stage on `value` and return its output.

    Raises StageError, with the place in the graph, if the stage fails; SeatError if another attempt may
    succeed; OutputTooLarge or ValueNotJson if its result cannot be passed on.
    """
    context.check()
    try:
        return _run(call.implementation, value, context)
    except StageError as exc:
        exc.details.setdefault("path", call.path)
        exc.details.setdefault("stage", call.name)
        raise


def _run(implementation: str, value: Json, context: StageContext) -> Json:
    name = implementation.removeprefix(BUILTIN)
    if implementation.startswith(PREFIX):
        return call_python(implementation, value, context)
    if is_pure(implementation):
        return check_size(run_pure(name, value))
    if implementation.startswith(BUILTIN) and name in NETWORK_STAGES:
        return check_size(NETWORK_STAGES[name](value, context))
    raise StageError(
        f"No built-in stage has the implementation {implementation!r}",
        {
            "expected": "one of "
            + ", ".join(BUILTIN + known for known in sorted((*FUNCTIONS, *NETWORK_STAGES)))
        },
    )
