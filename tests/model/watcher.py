"""Check the state transitions of jobs, stages and attempts in each script call."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gridq.protocol.states import (
    ATTEMPT_MOVES,
    JOB_MOVES,
    STAGE_MOVES,
    AttemptState,
    JobState,
    Moves,
    StageState,
)
from tests.unit.store.plans import Grid

Transition = tuple[str, str | None, str, str]
"""The kind (job, stage or attempt), the old state, the new state, and the script."""

_TABLES: dict[str, Moves] = {"job": JOB_MOVES, "stage": STAGE_MOVES, "attempt": ATTEMPT_MOVES}

ALL_TRANSITIONS: frozenset[Transition] = frozenset(
    (what, before, after, script)
    for what, table in _TABLES.items()
    for (before, after), scripts in table.items()
    for script in scripts
)
"""All transitions that the tables of gridq.protocol.states allow."""


ENDED_BY = {
    "register": StageState.RUNNING, "leave": StageState.RUNNING, "quarantine": StageState.QUARANTINED,
}  # fmt: skip
"""The state of the stage that fails its job in a call that does not name it."""


class Watcher:
    """Reads the server after each script call of `grid`. A transition that is in no table is an error.

    What a call leaves of a job, any later call may do in its place.
    """

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.transitions: set[Transition] = set()
        self.jobs: dict[str, JobState] = {}
        self.stages: dict[tuple[str, str], StageState] = {}
        self.attempts: dict[str, AttemptState] = {}
        self.unfinished: set[str] = set()
        """The jobs of which the calls so far have left something."""

    def after(self, script: str, args: tuple[Any, ...], reply: Any) -> None:
        """Record and check the transitions of a call."""
        if script in ("enqueue", "admit", "stop"):
            self.jobs.setdefault(str(args[0]), None)  # type: ignore[arg-type]
        before = dict(self.stages)
        running = [job for job, state in self.jobs.items() if state is None or not state.is_final]
        pipe = self.grid.client.pipeline(transaction=True)
        pipe.zrange(self.grid.keys("leases"), 0, -1)
        pipe.zrange(self.grid.keys("long_work"), 0, -1)
        for job in running:
            pipe.hgetall(self.grid.keys("job", job))
            pipe.exists(self.grid.keys("submitted", job))
            pipe.lrange(self.grid.keys("result", job), 0, -1)
        leases, unfinished, *found = pipe.execute()
        opened = {lease.decode() for lease in leases}
        fields = {job: _text(found[at]) for job, at in zip(running, range(0, len(found), 3), strict=True)}
        self._attempts(script, opened, fields, _outcome(script, args, reply))
        failed = set(_failed(script, args, reply, before))
        for job, at in zip(running, range(0, len(found), 3), strict=True):
            state = _job(found[at], found[at + 1], found[at + 2])
            if state is None:
                if self.jobs[job] is None:
                    del self.jobs[job]
                continue
            self._record_transition("job", job, self.jobs[job], state, script)
            if state is JobState.FAILED and script in ENDED_BY:
                was = ENDED_BY[script]
                failed |= {at for at, stood in before.items() if at[0] == job and stood is was}
            if state is JobState.FAILED and script == "sweep" and b"seat.none_live" in found[at + 2][0]:
                failed |= {at for at, stood in before.items() if at[0] == job and stood is StageState.READY}
            if state is JobState.EXPIRED and b"job.queue_timeout" in found[at + 2][0]:
                stood = {before[key] for key in before if key[0] == job}
                assert self.jobs[job] is JobState.QUEUED or StageState.READY in stood, f"{job} did not wait"
            self.jobs[job] = state
            self._stages(script, job, state, fields[job], opened, failed, args)
        self.unfinished = {job.decode() for job in unfinished}

    def _attempts(
        self, script: str, opened: set[str], fields: dict[str, dict[str, str]], outcome: Any
    ) -> None:
        for lease in opened - self.attempts.keys():
            self._record_transition("attempt", lease.partition(":")[0], None, AttemptState.RUNNING, script)
            self.attempts[lease] = AttemptState.RUNNING
        for lease, was in self.attempts.items():
            job, step, rest = lease.split(":", 2)
            if was.is_final:
                assert lease not in opened, f"{lease} was {was} and runs again"
                continue
            now = AttemptState.FENCED
            if outcome and outcome[0] == lease:
                now = outcome[1]
            elif lease in opened:
                now = AttemptState.RUNNING
            elif fields.get(job, {}).get(f"lease:{step}") == rest:
                now = AttemptState.LAPSED
            self._record_transition("attempt", job, was, now, script)
            self.attempts[lease] = now

    def _stages(
        self, script: str, job: str, state: JobState, fields: dict[str, str], opened: set[str],
        failed: set[tuple[str, str]], args: tuple[Any, ...],
    ) -> None:  # fmt: skip
        if state is JobState.RUNNING:
            for number in range(int(fields["steps"])):
                n = str(number)
                now = _stage(job, n, fields, opened)
                self._record_transition("stage", job, self.stages.get((job, n)), now, script)
                self.stages[job, n] = now
            return
        for key in [key for key in self.stages if key[0] == job]:
            was = self.stages.pop(key)
            if state is JobState.DONE and was not in (StageState.DONE, StageState.SKIPPED):
                self._record_transition("stage", job, was, StageState.DONE, script)  # the last one
            elif state is JobState.FAILED and key in failed:
                self._record_transition("stage", job, was, StageState.FAILED, script)

    def _record_transition(self, what: str, job: str, before: Any, after: Any, script: str) -> None:
        if before == after:
            return
        scripts = _TABLES[what].get((before, after), ())
        if script in scripts:
            self.transitions.add((what, before, after, script))
        else:
            in_place = scripts and job in self.unfinished and what != "job"
            assert in_place, f"{what} of {job}: {before} -> {after} by {script}"


def _text(found: dict[bytes, bytes]) -> dict[str, str]:
    return {name.decode(): value.decode("utf-8", "replace") for name, value in found.items()}


def _job(fields: Any, inbox: int, end: list[bytes]) -> JobState | None:
    places = [bool(fields), bool(inbox), bool(end)]
    assert sum(places) <= 1, f"a job is in {places} of: running, inbox, ended"
    assert len(end) <= 1, f"it ended more than once: {end}"
    if end:
        return JobState(end[0].partition(b"\n")[0].decode())
    return JobState.RUNNING if fields else JobState.QUEUED if inbox else None


def _stage(job: str, n: str, fields: dict[str, str], opened: set[str]) -> StageState:
    if f"skipped:{n}" in fields:
        return StageState.SKIPPED
    if f"done:{n}" in fields:
        return StageState.DONE
    if f"quarantine:{n}" in fields:
        return StageState.QUARANTINED
    if f"lease:{n}" in fields and f"{job}:{n}:{fields[f'lease:{n}']}" in opened:
        return StageState.RUNNING
    return StageState.READY if f"pending:{n}" in fields else StageState.WAITING


def _outcome(script: str, args: tuple[Any, ...], reply: Any) -> tuple[str, AttemptState] | None:
    """Return the state of the call's own attempt after the call."""
    if script == "complete" and reply[0] == 1:
        return args[0], AttemptState.RECORDED
    if script == "fail" and reply != b"fenced":
        return args[0], AttemptState.BACK if args[1] == "back" else AttemptState.FAILED
    return None


def _failed(
    script: str, args: tuple[Any, ...], reply: Any, before: dict[tuple[str, str], StageState]
) -> Iterable[tuple[str, str]]:
    """Yield the stages whose failure ended their job in this call."""
    ends = (b"plain", b"celery")
    if script == "fail" and reply.partition(b" ")[0] in ends:
        job, step, _ = args[0].split(":", 2)
        yield job, step
    elif script == "sweep":
        lost, dropped = reply[8], reply[9]
        for at in range(0, len(lost), 5):
            if lost[at + 4] in ends:
                job, step, _ = lost[at].decode().split(":", 2)
                yield job, step
        names = {name.decode() for name in dropped[::3]}
        yield from (at for at, was in before.items() if at[0] in names and was is StageState.QUARANTINED)
