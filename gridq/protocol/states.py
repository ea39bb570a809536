"""The states of jobs, stages and attempts: their meanings, and the scripts that move them, as tables.

docs/reference/states.md shows them as diagrams (docs/state_diagram.py), and the protocol tests check
every move that they see against these tables. A script is atomic, so a move is from the state before the call
to the state after it. What it leaves of a job of very many steps, `advance` and `sweep` do in its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class JobState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"

    @property
    def is_final(self) -> bool:
        return self not in (JobState.QUEUED, JobState.RUNNING)


class StageState(StrEnum):
    WAITING = "waiting"
    READY = "ready"
    RUNNING = "running"
    DONE = "done"
    SKIPPED = "skipped"
    QUARANTINED = "quarantined"
    FAILED = "failed"


class AttemptState(StrEnum):
    RUNNING = "running"
    LAPSED = "lapsed"
    RECORDED = "recorded"
    FAILED = "failed"
    BACK = "back"
    FENCED = "fenced"

    @property
    def is_final(self) -> bool:
        return self not in (AttemptState.RUNNING, AttemptState.LAPSED)


State = JobState | StageState | AttemptState
Moves = Mapping[tuple[State | None, State], tuple[str, ...]]
"""By (from, to): the scripts in gridq/store/lua that make the move; from None: it did not exist before."""

# Three tables, because two kinds may have states with the same name.
JOBS: Mapping[JobState, str] = {
    JobState.QUEUED: "its graph and input are in the inbox; no router has admitted it yet",
    JobState.RUNNING: "its plan is written, and its stages run",
    JobState.DONE: "its last stage is recorded",
    JobState.FAILED: "it was rejected, a stage failed outside any Retry, all seats that could run one were "
    "unavailable, its budget was used up, or it was dropped from a full queue for an interactive job",
    JobState.CANCELLED: "its caller cancelled it",
    JobState.EXPIRED: "it passed its deadline, or a stage waited longer than its queue timeout",
}

STAGES: Mapping[StageState, str] = {
    StageState.WAITING: "it waits for other stages, or for the delay of a Retry",
    StageState.READY: "it is in its queue: any seat that may run it can claim it",
    StageState.RUNNING: "a seat holds its lease",
    StageState.DONE: "its output is recorded",
    StageState.SKIPPED: "it is in the arm of a Branch that was not taken",
    StageState.QUARANTINED: "it killed the process that ran it, twice; an operator releases or drops it",
    StageState.FAILED: "it failed for good, and its job with it",
}

ATTEMPTS: Mapping[AttemptState, str] = {
    AttemptState.RUNNING: "its lease is open",
    AttemptState.LAPSED: "its lease is lost, but no other attempt claimed the stage: its result still counts",
    AttemptState.RECORDED: "its output is the stage's output",
    AttemptState.FAILED: "it reported a failure",
    AttemptState.BACK: "it handed the stage back because its worker stops; it does not count as an attempt",
    AttemptState.FENCED: "the stage went on without it; what it still reports is only charged to its seat",
}

_LOST = ("leave", "register", "sweep")
"""The scripts that find lost leases: a seat leaves, a seat starts again, or a lease expires."""

_STOPPED = ("fail", *_LOST)
"""The scripts that end an attempt without an output."""

JOB_MOVES: Moves = {
    (None, JobState.QUEUED): ("enqueue",),
    (None, JobState.RUNNING): ("admit",),
    (JobState.QUEUED, JobState.RUNNING): ("admit",),
    (JobState.QUEUED, JobState.FAILED): ("stop",),
    (JobState.QUEUED, JobState.CANCELLED): ("stop",),
    (JobState.QUEUED, JobState.EXPIRED): ("sweep",),
    (JobState.RUNNING, JobState.DONE): ("complete",),
    (JobState.RUNNING, JobState.FAILED): ("admit", "complete", "quarantine", *_STOPPED),
    (JobState.RUNNING, JobState.CANCELLED): ("stop",),
    (JobState.RUNNING, JobState.EXPIRED): ("sweep",),
}

STAGE_MOVES: Moves = {
    (None, StageState.WAITING): ("admit",),
    (None, StageState.READY): ("admit",),
    (StageState.WAITING, StageState.READY): ("complete", *_STOPPED),
    (StageState.WAITING, StageState.RUNNING): ("complete",),
    (StageState.WAITING, StageState.SKIPPED): ("complete",),
    (StageState.READY, StageState.RUNNING): ("claim", "complete"),
    (StageState.READY, StageState.DONE): ("complete",),
    (StageState.READY, StageState.WAITING): _STOPPED,
    (StageState.READY, StageState.FAILED): ("fail", "sweep"),
    (StageState.READY, StageState.QUARANTINED): ("fail",),
    (StageState.RUNNING, StageState.DONE): ("complete",),
    (StageState.RUNNING, StageState.READY): _STOPPED,
    (StageState.RUNNING, StageState.WAITING): _STOPPED,
    (StageState.RUNNING, StageState.FAILED): _STOPPED,
    (StageState.RUNNING, StageState.QUARANTINED): ("fail", "leave"),
    (StageState.QUARANTINED, StageState.READY): ("quarantine", *_STOPPED),
    (StageState.QUARANTINED, StageState.WAITING): _STOPPED,
    (StageState.QUARANTINED, StageState.FAILED): ("quarantine", "sweep"),
    (StageState.DONE, StageState.READY): _STOPPED,
    (StageState.DONE, StageState.WAITING): _STOPPED,
    (StageState.SKIPPED, StageState.WAITING): _STOPPED,
}
"""Moves within a running job; when a job ends, its unfinished stages are withdrawn with it."""

ATTEMPT_MOVES: Moves = {
    (None, AttemptState.RUNNING): ("claim", "complete"),
    (AttemptState.RUNNING, AttemptState.RECORDED): ("complete",),
    (AttemptState.RUNNING, AttemptState.FAILED): ("fail",),
    (AttemptState.RUNNING, AttemptState.BACK): ("fail",),
    (AttemptState.RUNNING, AttemptState.LAPSED): _LOST,
    (AttemptState.RUNNING, AttemptState.FENCED): ("admit", "complete", "quarantine", "stop", *_STOPPED),
    (AttemptState.LAPSED, AttemptState.RECORDED): ("complete",),
    (AttemptState.LAPSED, AttemptState.FAILED): ("fail",),
    (AttemptState.LAPSED, AttemptState.BACK): ("fail",),
    (AttemptState.LAPSED, AttemptState.FENCED): (
        "admit",
        "claim",
        "complete",
        "quarantine",
        "stop",
        *_STOPPED,
    ),
}
