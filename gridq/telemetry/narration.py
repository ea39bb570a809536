"""What happens to jobs and seats, told as events with fields and as sentences.

`about` binds the fields (job, stage, attempt, worker) that every line written within it carries, `tell` tells
one event. Both cost next to nothing where nobody listens, and load nothing: agents' programs import this too.
`gridq.telemetry.logs` dresses the lines in the grid's own programs.

No field is ever a prompt, an answer, a key or an error's message: of an error its code is told.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import pairwise

from gridq.protocol.models import Json

log = logging.getLogger(__name__)

_about: ContextVar[Mapping[str, Json]] = ContextVar("gridq_about")

_NOTHING: Mapping[str, Json] = {}


@contextmanager
def about(**fields: Json) -> Iterator[None]:
    """Give every line that this thread or task logs within it these fields, beside those around it."""
    token = _about.set({**_about.get(_NOTHING), **fields})
    try:
        yield
    finally:
        _about.reset(token)


def now_about(**fields: Json) -> None:
    """Change fields within the innermost `about`: the next stage of an attempt that runs several."""
    _about.set({**_about.get(_NOTHING), **fields})


def known() -> Mapping[str, Json]:
    """The fields that are bound here and now."""
    return _about.get(_NOTHING)


def tell(event: str, **fields: Json) -> None:
    """Tell one of the EVENTS, with its fields and the bound ones, at the level INFO."""
    if log.isEnabledFor(logging.INFO):
        log.info(event, extra={"gridq": fields})


def recorded(rows: Iterable[Mapping[str, Json]], ended: str) -> None:
    """Tell of an attempt whose output was recorded: each of its stages, and the job where it `ended`."""
    if log.isEnabledFor(logging.INFO):
        for row in rows:
            told = {name: row[name] for name in ("run_ms", "tokens_in", "tokens_out", "micro_dollars")}
            tell("stage done", stage=row["path"], runs=row["stage"], **told)
        if ended:
            tell("job done")


def unrecorded(kind: str, code: str, ended: str) -> None:
    """Tell of an attempt without an output: what sort of failure, its error's code, and what `fail` said."""
    if ended == "fenced":
        tell("stage stopped")
    elif kind == "back":
        tell("stage handed back")
    elif ended == "quarantined":
        tell("stage quarantined", code=code)
    elif kind != "stage" and ended == "again":
        tell("stage tried again", code=code)
    else:
        tell("stage failed", code=code)
        if ended in ("plain", "celery"):
            tell("job failed", code=code)


def place_of(path: str) -> str:
    """The name nearest to a stage: of the binding or branch it stands in, empty where there is none.

    >>> place_of("root.body.branches.summary.stages[1].stage")
    'summary'
    """
    found = ""
    for before, name in pairwise(path.split(".")):
        if before in ("bindings", "branches"):
            found = name.partition("[")[0]
    return found


def sentence(event: str, fields: Mapping[str, Json]) -> str | None:
    """An event as a sentence; None where it is not one of the EVENTS, or lacks what its sentence needs."""
    told = EVENTS.get(event)
    try:
        return None if told is None else told(fields)
    except (KeyError, TypeError, ValueError):
        return None


Fields = Mapping[str, Json]


def _job(about: Fields) -> str:
    name = about.get("name")
    return f"Job {about['job'][:8]}" + (f" ({name})" if name else "")


def _stage(about: Fields) -> str:
    """The job's name, the binding or branch that the stage stands in, and what it runs."""
    place = place_of(about["stage"])
    return f"{about.get('name') or about['job'][:8]}/{f'{place}/' if place else ''}{about['runs']}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _ms(value: float) -> str:
    return f"{value / 1000:.1f} s" if value >= 10_000 else f"{value:.0f} ms"


def _admitted(about: Fields) -> str:
    return f"{_job(about)} was admitted for agent {about['agent']}: {_count(about['stages'], 'stage')}."


def _taken(about: Fields) -> str:
    wait = _ms(about["wait_ms"])
    return f"{about['worker']} took {_stage(about)} (attempt {about['attempt']}) after {wait}."


def _done(about: Fields) -> str:
    tokens = about.get("tokens_out") or 0
    spoken = f", {_count(tokens, 'token')}" if tokens else ""
    return f"{_stage(about)} answered in {_ms(about['run_ms'])}{spoken}."


def _quarantined(about: Fields) -> str:
    return (
        f"{_stage(about)} killed the process that ran it again, on {about['worker']}, and stands in "
        "quarantine: see gridq quarantine."
    )


def _dropped(about: Fields) -> str:
    place = place_of(about["stage"]) or about["stage"]
    return f"{_job(about)} failed at {place}, whose quarantine was over: {about['code']}."


def _again(about: Fields) -> str:
    return f"{_stage(about)} met a fault of {about['worker']} ({about['code']}), and waits for another seat."


THEN = {"again": "waits for another seat", "quarantined": "stands in quarantine: see gridq quarantine"}
"""What becomes of a stage whose attempt was lost."""


def _lost(about: Fields) -> str:
    what = f"{about.get('name') or about['job'][:8]}/{place_of(about['stage']) or about['stage']}"
    then = THEN.get(about["after"], "is not tried again: its job failed")
    return f"{what} (attempt {about['attempt']}) was lost with {about['worker']}, and {then}."


def _dead(about: Fields) -> str:
    count = about["workers"]
    return "A worker is dead." if count == 1 else f"{count} workers are dead."


def _live(about: Fields) -> str:
    return f"{about['worker']} is live with {_count(about['concurrency'], 'slot')}: {', '.join(about['queues'])}."


def _paused(about: Fields) -> str:
    return f"{about['worker']} takes nothing for {about['seconds']:.0f} s ({about['code']})."


EVENTS: dict[str, Callable[[Fields], str]] = {
    "job admitted": _admitted,
    "job refused": lambda about: f"{_job(about)} was refused: {about['code']}.",
    "job gave way": lambda about: f"{_job(about)} gave way to an interactive job: its queue was full.",
    "job done": lambda about: f"{_job(about)} is done.",
    "job failed": lambda about: f"{_job(about)} failed at {about['runs']}: {about['code']}.",
    "stage taken": _taken,
    "stage done": _done,
    "stage failed": lambda about: f"{_stage(about)} failed on {about['worker']}: {about['code']}.",
    "stage tried again": _again,
    "stage quarantined": _quarantined,
    "stage dropped": _dropped,
    "stage handed back": lambda about: f"{about['worker']} handed {_stage(about)} back.",
    "stage stopped": lambda about: f"{_stage(about)} was stopped: its job ended, or another seat has it.",
    "stage lost": _lost,
    "workers dead": _dead,
    "seat live": _live,
    "seat draining": lambda about: f"{about['worker']} takes nothing more.",
    "seat gone": lambda about: f"{about['worker']} has left.",
    "seat paused": _paused,
    "seat kept": lambda about: f"The owner of {about['worker']} keeps it: what it ran is handed back.",
    "seat back": lambda about: f"{about['worker']} takes stages again.",
}
"""Every event there is, with its sentence. docs/logs.md lists them."""
