"""Events about jobs and seats, logged with fields and readable as sentences.

`log_context` binds the fields (job, stage, attempt, worker) that every log line within it carries; `narrate`
logs one event. Both cost next to nothing if nobody listens, and load nothing: agents' programs import this
module too. `gridq.telemetry.logs` formats the lines in the grid's own programs.

No field is ever a prompt, an answer, a key or an error's message. Of an error, the code is logged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import pairwise

from gridq.protocol.durations import format_seconds
from gridq.protocol.models import Json

log = logging.getLogger(__name__)

_bound: ContextVar[Mapping[str, Json]] = ContextVar("gridq_bound")

_NO_FIELDS: Mapping[str, Json] = {}


@contextmanager
def log_context(**fields: Json) -> Iterator[None]:
    """Add fields to every line that this thread or task logs within it."""
    token = _bound.set({**_bound.get(_NO_FIELDS), **fields})
    try:
        yield
    finally:
        _bound.reset(token)


def update_log_context(**fields: Json) -> None:
    """Change fields of the innermost `log_context`, for the next stage of an attempt that runs several."""
    _bound.set({**_bound.get(_NO_FIELDS), **fields})


def bound_fields() -> Mapping[str, Json]:
    """Return the fields that are bound here and now."""
    return _bound.get(_NO_FIELDS)


def narrate(event: str, **fields: Json) -> None:
    """Log one of the EVENTS with its fields and the bound ones, at level INFO."""
    if log.isEnabledFor(logging.INFO):
        log.info(event, extra={"gridq": fields})


def narrate_completion(rows: Iterable[Mapping[str, Json]], ended: str) -> None:
    """Log an attempt whose output was recorded: each of its stages, and the job if that has `ended`."""
    if log.isEnabledFor(logging.INFO):
        for row in rows:
            usage = {name: row[name] for name in ("run_ms", "tokens_in", "tokens_out", "micro_dollars")}
            narrate("stage done", stage=row["path"], runs=row["stage"], **usage)
        if ended:
            narrate("job done")


def narrate_failure(kind: str, code: str, ended: str) -> None:
    """Log an attempt without an output: its kind of failure, its error's code, the reply of `fail.lua`."""
    if ended == "fenced":
        narrate("stage stopped")
    elif kind == "back":
        narrate("stage handed back")
    elif ended == "quarantined":
        narrate("stage quarantined", code=code)
    elif kind != "stage" and ended == "again":
        narrate("stage retried", code=code)
    else:
        narrate("stage failed", code=code)
        if ended in ("plain", "celery"):
            narrate("job failed", code=code)


def enclosing_name(path: str) -> str:
    """Return the name of the innermost binding or branch around a stage; empty if there is none.

    >>> enclosing_name("root.body.branches.summary.stages[1].stage")
    'summary'
    """
    found = ""
    for before, name in pairwise(path.split(".")):
        if before in ("bindings", "branches"):
            found = name.partition("[")[0]
    return found


def to_sentence(event: str, fields: Mapping[str, Json]) -> str | None:
    """Return an event as a sentence; None if it is not one of the EVENTS or lacks a field."""
    describe = EVENTS.get(event)
    try:
        return None if describe is None else describe(fields)
    except (KeyError, TypeError, ValueError):
        return None


Fields = Mapping[str, Json]


def _job(fields: Fields) -> str:
    name = fields.get("name")
    return f"Job {fields['job'][:8]}" + (f" ({name})" if name else "")


def _stage(fields: Fields) -> str:
    """Return the job's name, the binding or branch around the stage, and what it runs."""
    place = enclosing_name(fields["stage"])
    return f"{fields.get('name') or fields['job'][:8]}/{f'{place}/' if place else ''}{fields['runs']}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _ms(value: float) -> str:
    return f"{value / 1000:.1f} s" if value >= 10_000 else f"{value:.0f} ms"


def _admitted(fields: Fields) -> str:
    return f"{_job(fields)} was admitted for agent {fields['agent']}: {_count(fields['stages'], 'stage')}."


def _taken(fields: Fields) -> str:
    wait = _ms(fields["wait_ms"])
    return f"{fields['worker']} took {_stage(fields)} (attempt {fields['attempt']}) after {wait}."


def _done(fields: Fields) -> str:
    tokens = fields.get("tokens_out") or 0
    spoken = f", {_count(tokens, 'token')}" if tokens else ""
    return f"{_stage(fields)} answered in {_ms(fields['run_ms'])}{spoken}."


def _quarantined(fields: Fields) -> str:
    return (
        f"{_stage(fields)} killed the process that ran it again, on {fields['worker']}, and is in "
        "quarantine. See gridq quarantine."
    )


def _dropped(fields: Fields) -> str:
    place = enclosing_name(fields["stage"]) or fields["stage"]
    return f"{_job(fields)} failed at {place}, whose quarantine ended: {fields['code']}."


def _again(fields: Fields) -> str:
    return f"{_stage(fields)} failed on {fields['worker']} ({fields['code']}) and waits for another seat."


THEN = {"again": "it waits for another seat", "quarantined": "it is in quarantine: see gridq quarantine"}
"""The fate of a stage whose attempt was lost."""


def _lost(fields: Fields) -> str:
    what = f"{fields.get('name') or fields['job'][:8]}/{enclosing_name(fields['stage']) or fields['stage']}"
    then = THEN.get(fields["after"], "its job failed")
    return f"{what} (attempt {fields['attempt']}) was lost with {fields['worker']}; {then}."


def _dead(fields: Fields) -> str:
    count = fields["workers"]
    return "A worker died." if count == 1 else f"{count} workers died."


def _live(fields: Fields) -> str:
    slots = _count(fields["concurrency"], "slot")
    return f"{fields['worker']} is live with {slots}: {', '.join(fields['queues'])}."


def _paused(fields: Fields) -> str:
    return f"{fields['worker']} takes no work for {format_seconds(fields['seconds'])} ({fields['code']})."


def _model_paused(fields: Fields) -> str:
    where = f"{fields['worker']} does not use its model {fields['model']}"
    return f"{where} for {format_seconds(fields['seconds'])} ({fields['code']})."


EVENTS: dict[str, Callable[[Fields], str]] = {
    "job admitted": _admitted,
    "job refused": lambda fields: f"{_job(fields)} was refused: {fields['code']}.",
    "job preempted": lambda fields: f"{_job(fields)} was dropped for an interactive job: its queue was full.",
    "job done": lambda fields: f"{_job(fields)} is done.",
    "job failed": lambda fields: f"{_job(fields)} failed at {fields['runs']}: {fields['code']}.",
    "stage claimed": _taken,
    "stage done": _done,
    "stage failed": lambda fields: f"{_stage(fields)} failed on {fields['worker']}: {fields['code']}.",
    "stage retried": _again,
    "stage quarantined": _quarantined,
    "stage dropped": _dropped,
    "stage handed back": lambda fields: f"{fields['worker']} handed back {_stage(fields)}.",
    "stage stopped": lambda fields: f"{_stage(fields)} was stopped: its job ended, or another seat has it.",
    "stage lost": _lost,
    "workers died": _dead,
    "seat live": _live,
    "seat draining": lambda fields: f"{fields['worker']} takes no more work.",
    "seat left": lambda fields: f"{fields['worker']} left the grid.",
    "seat cooldown": _paused,
    "model cooldown": _model_paused,
    "seat paused": lambda fields: f"The owner of {fields['worker']} paused it; its stages were handed back.",
    "seat available": lambda fields: f"{fields['worker']} takes work again.",
}
"""Every event, with its sentence. The documentation lists them."""
