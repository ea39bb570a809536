"""Stages in quarantine: each killed the process that ran it twice, so nobody runs it until an operator says
what becomes of it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

from redis import Redis

from gridq.errors import NotQuarantined, StageQuarantined
from gridq.graph.plan import Step, load_step
from gridq.jobs.waiting import build_not_found_error
from gridq.protocol.models import Json
from gridq.protocol.states import JobState
from gridq.store.keys import Keys
from gridq.store.scripts import Scripts
from gridq.views.jobs import JobReader, JobView

PAGE = 200
"""Stages read in one round trip."""


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A stage in quarantine: its place in the job called `name`, how often it was tried and killed what ran
    it, who ran it last and why that ended, and until when (seconds since 1970) an operator may act. `step`
    numbers what is claimed as one.
    """

    job: str
    name: str
    agent: str
    step: int
    path: str
    stage: str
    queue: str
    attempts: int
    deaths: int
    worker: str
    reason: str
    until: float

    def to_json(self) -> dict[str, Json]:
        """The fields as a JSON object."""
        return asdict(self)


def listing(client: Redis, keys: Keys) -> list[Quarantined]:
    """Every stage in quarantine, the one whose time is over first before the others."""
    members: Any = client.zrange(keys("quarantine"), 0, -1, withscores=True)
    found = []
    for at in range(0, len(members), PAGE):
        page = [(*member.decode().rsplit(":", 1), until) for member, until in members[at : at + PAGE]]
        look = client.pipeline(transaction=False)
        for job, step, _ in page:
            fields = [
                "name",
                "agent",
                *(f"{field}:{step}" for field in ("spec", "quarantine", "attempts", "deaths")),
            ]
            look.hmget(keys("job", job), fields)
        for (job, step, until), reply in zip(page, look.execute(), strict=True):
            if None not in (reply[2], reply[3]):  # else it has left it since
                found.append(_read(job, int(step), until / 1000, reply))
    return found


def _read(job: str, step: int, until: float, reply: list[bytes | None]) -> Quarantined:
    name, agent, spec, told, attempts, deaths = reply
    plan = load_step(spec or b"")
    details = json.loads((told or b"").partition(b" ")[2])["details"]
    ops = {op.path: op.name for op in plan.ops}
    path = details.get("path")
    path = path if path in ops else next(iter(ops), plan.path)
    return Quarantined(
        job=job,
        name=(name or b"").decode(),
        agent=(agent or b"").decode(),
        step=step,
        path=path,
        stage=ops.get(path, ""),
        queue=plan.queue,
        attempts=int(attempts or 0),
        deaths=int(deaths or 0),
        worker=str(details.get("worker") or ""),
        reason=str(details.get("reason") or ""),
        until=until,
    )


def act(scripts: Scripts, verb: Literal["release", "drop"], job: str, stage: str | int, by: str) -> bool:
    """Release a stage in quarantine, or drop it; False where the same was done before.

    `stage` is its path in the graph, or the number of its step; `by` is who says so. JobNotFound;
    NotQuarantined: it stands in no quarantine.
    """
    client, keys = scripts.client, scripts.keys
    view = JobReader(client, keys, job).read(rows=False)
    if view.state is None:
        raise build_not_found_error(job)
    step = _step_of(client, keys, view, str(stage))
    word = "not" if step is None else scripts.quarantine(verb, job, step, by)
    if word in ("not", "over", "unknown"):
        view = JobReader(client, keys, job).read(rows=False)
        if view.state is None:
            raise build_not_found_error(job)
        if verb == "drop" and _dropped(view, str(stage)):
            return False
        raise _not_quarantined(client, keys, view, str(stage))
    return word != "before"


def _step_of(client: Redis, keys: Keys, view: JobView, stage: str) -> int | None:
    """The number of the step in which a stage runs, None where that is not known."""
    if stage.isdecimal() and stage.isascii() and len(stage) < 10:
        return int(stage)
    known = next((each.step for each in view.stages if each.path == stage), None)
    if known is not None or view.state is not JobState.RUNNING:
        return known
    # The plan is too large to be read whole.
    for member in _of(client, keys, view.job):
        if stage in _paths(client, keys, view.job, member):
            return member
    return None


def _of(client: Redis, keys: Keys, job: str) -> list[int]:
    """The steps of a job that are in quarantine."""
    members: Any = client.zrange(keys("quarantine"), 0, -1)
    pairs = (member.decode().rsplit(":", 1) for member in members)
    return [int(step) for name, step in pairs if name == job]


def _paths(client: Redis, keys: Keys, job: str, step: int) -> list[str]:
    spec: Any = client.hget(keys("job", job), f"spec:{step}")
    plan: Step | None = None if spec is None else load_step(spec)
    return [] if plan is None else [plan.path, *(op.path for op in plan.ops)]


def _dropped(view: JobView, stage: str) -> bool:
    """Whether this stage was given up before: its job has ended with it."""
    error = view.error or {}
    details = error.get("details") or {}
    return error.get("code") == StageQuarantined.code and stage in (
        details.get("path"),
        str(details.get("step")),
    )


def _not_quarantined(client: Redis, keys: Keys, view: JobView, stage: str) -> NotQuarantined:
    details: dict[str, Any] = {"path": stage, "job": view.job}
    places = [each for each in view.stages if stage in (each.path, str(each.step))]
    others = [each.path for each in listing(client, keys) if each.job == view.job]
    if view.state is not JobState.RUNNING:
        details["reason"] = f"the job is {view.state}"
    elif places:
        details["reason"] = f"it is {places[0].state}"
    else:
        details["reason"] = "the job has no such stage, or is too large to look for it"
    if others:
        details["expected"] = "one of " + ", ".join(others[:5])
    details["fix"] = "look with: gridq quarantine"
    return NotQuarantined(f"The stage {stage!r} of the job {view.job} is not in quarantine", details)
