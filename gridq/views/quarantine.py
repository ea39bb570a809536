"""Stages in quarantine: each killed the process that ran it twice, so an operator must release or drop it."""

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

PAGE_SIZE = 200
"""Stages in one round trip."""


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A stage in quarantine.

    `name` is the job's. `attempts` and `deaths` count its tries, and those that killed their process.
    `worker` ran it last, `reason` is how that ended. An operator may act until `until`, in seconds since
    1970. Stages that are claimed as one share a `step`.
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
        return asdict(self)


def list_quarantined(client: Redis, keys: Keys) -> list[Quarantined]:
    """Return all stages in quarantine, those that expire first come first."""
    members: Any = client.zrange(keys("quarantine"), 0, -1, withscores=True)
    found = []
    for at in range(0, len(members), PAGE_SIZE):
        page = [(*member.decode().rsplit(":", 1), until) for member, until in members[at : at + PAGE_SIZE]]
        pipe = client.pipeline(transaction=False)
        for job, step, _ in page:
            fields = [
                "name",
                "agent",
                *(f"{field}:{step}" for field in ("spec", "quarantine", "attempts", "deaths")),
            ]
            pipe.hmget(keys("job", job), fields)
        for (job, step, until), reply in zip(page, pipe.execute(), strict=True):
            if None not in (reply[2], reply[3]):  # else it has left the quarantine meanwhile
                found.append(_read(job, int(step), until / 1000, reply))
    return found


def _read(job: str, step: int, until: float, reply: list[bytes | None]) -> Quarantined:
    name, agent, spec, stored, attempts, deaths = reply
    plan = load_step(spec or b"")
    details = json.loads((stored or b"").partition(b" ")[2])["details"]
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


def release_or_drop(
    scripts: Scripts, verb: Literal["release", "drop"], job: str, stage: str | int, by: str
) -> bool:
    """Release or drop a stage in quarantine. Return False if the same was done before.

    `stage` is its path in the graph or the number of its step, `by` names the operator. Raises JobNotFound
    and NotQuarantined.
    """
    client, keys = scripts.client, scripts.keys
    view = JobReader(client, keys, job).read(rows=False)
    if view.state is None:
        raise build_not_found_error(job)
    step = _find_step(client, keys, view, str(stage))
    word = "not" if step is None else scripts.quarantine(verb, job, step, by)
    if word in ("not", "over", "unknown"):
        view = JobReader(client, keys, job).read(rows=False)
        if view.state is None:
            raise build_not_found_error(job)
        if verb == "drop" and _was_dropped(view, str(stage)):
            return False
        raise _build_not_quarantined_error(client, keys, view, str(stage))
    return word != "before"


def _find_step(client: Redis, keys: Keys, view: JobView, stage: str) -> int | None:
    """Return the number of a stage's step; None if it is not known."""
    if stage.isdecimal() and stage.isascii() and len(stage) < 10:
        return int(stage)
    known = next((each.step for each in view.stages if each.path == stage), None)
    if known is not None or view.state is not JobState.RUNNING:
        return known
    # The plan is too large to be read whole.
    for member in _list_steps(client, keys, view.job):
        if stage in _read_paths(client, keys, view.job, member):
            return member
    return None


def _list_steps(client: Redis, keys: Keys, job: str) -> list[int]:
    """Return the steps of a job that are in quarantine."""
    members: Any = client.zrange(keys("quarantine"), 0, -1)
    pairs = (member.decode().rsplit(":", 1) for member in members)
    return [int(step) for name, step in pairs if name == job]


def _read_paths(client: Redis, keys: Keys, job: str, step: int) -> list[str]:
    spec: Any = client.hget(keys("job", job), f"spec:{step}")
    plan: Step | None = None if spec is None else load_step(spec)
    return [] if plan is None else [plan.path, *(op.path for op in plan.ops)]


def _was_dropped(view: JobView, stage: str) -> bool:
    """Return whether this stage was dropped before, which ended its job."""
    error = view.error or {}
    details = error.get("details") or {}
    return error.get("code") == StageQuarantined.code and stage in (
        details.get("path"),
        str(details.get("step")),
    )


def _build_not_quarantined_error(client: Redis, keys: Keys, view: JobView, stage: str) -> NotQuarantined:
    details: dict[str, Any] = {"path": stage, "job": view.job}
    places = [each for each in view.stages if stage in (each.path, str(each.step))]
    others = [each.path for each in list_quarantined(client, keys) if each.job == view.job]
    if view.state is not JobState.RUNNING:
        details["reason"] = f"the job is {view.state}"
    elif places:
        details["reason"] = f"it is {places[0].state}"
    else:
        details["reason"] = "the job has no such stage, or is too large to be searched"
    if others:
        details["expected"] = "one of " + ", ".join(others[:5])
    details["fix"] = "run `gridq quarantine` to list them"
    return NotQuarantined(f"The stage {stage!r} of the job {view.job} is not in quarantine", details)
