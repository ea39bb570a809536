"""The states of jobs, stages and attempts, what each means, and which script moves each: as data.

docs/reference/states.md shows the same as diagrams (`gridq.protocol.state_diagram`), and the tests of the protocol hold
every move that they see to these tables. A script is one step that nobody can look into, so a move is from
what stood there before a call to what stands there after it.
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
    def final(self) -> bool:
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
    def final(self) -> bool:
        return self not in (AttemptState.RUNNING, AttemptState.LAPSED)


State = JobState | StageState | AttemptState
Moves = Mapping[tuple[State | None, State], tuple[str, ...]]
"""(from, to) → the scripts of gridq/store/lua that move it so; from None: there was nothing before."""

# One table for each: the states of two of them may bear the same name.
JOBS: Mapping[JobState, str] = {
    JobState.QUEUED: "its graph and input stand in the inbox; no router has admitted it yet",
    JobState.RUNNING: "its plan is written; its stages run one after the other and side by side",
    JobState.DONE: "its last stage is recorded",
    JobState.FAILED: "it was refused, a stage failed and no Retry caught it, its budget is used up, or as "
    "batch work in a full queue it gave way to an interactive job",
    JobState.CANCELLED: "its caller did not want it any more",
    JobState.EXPIRED: "it had not ended by its deadline, or nobody took a stage within its queue timeout",
}

STAGES: Mapping[StageState, str] = {
    StageState.WAITING: "for other stages, or for the delay of a Retry",
    StageState.READY: "stands in its capability's pending set: any seat that may run it can claim it",
    StageState.RUNNING: "a seat holds its lease",
    StageState.DONE: "its output is recorded",
    StageState.SKIPPED: "it stands in the arm of a Branch that was not taken",
    StageState.QUARANTINED: "it killed what ran it, twice: an operator releases or drops it",
    StageState.FAILED: "it failed for good, and its job with it",
}

ATTEMPTS: Mapping[AttemptState, str] = {
    AttemptState.RUNNING: "its lease is open",
    AttemptState.LAPSED: "its lease is lost, yet nobody else has claimed the stage: its result still counts",
    AttemptState.RECORDED: "its output is the stage's",
    AttemptState.FAILED: "it reported that it has no output",
    AttemptState.BACK: "it handed the stage back: its worker stops, nothing is counted",
    AttemptState.FENCED: "the stage went on without it: what it still reports is waste on its seat",
}

_LOST = ("leave", "register", "sweep")
"""The scripts that find leases lost: a seat that goes, one that starts anew, and whatever lapses."""

_STOPPED = ("fail", *_LOST)
"""The scripts by which an attempt ends without an output."""

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
    (StageState.READY, StageState.FAILED): ("fail",),
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
"""Of a job that runs; what had not ended when its job ended is withdrawn with it."""

ATTEMPT_MOVES: Moves = {
    (None, AttemptState.RUNNING): ("claim", "complete"),
    (AttemptState.RUNNING, AttemptState.RECORDED): ("complete",),
    (AttemptState.RUNNING, AttemptState.FAILED): ("fail",),
    (AttemptState.RUNNING, AttemptState.BACK): ("fail",),
    (AttemptState.RUNNING, AttemptState.LAPSED): _LOST,
    (AttemptState.RUNNING, AttemptState.FENCED): ("admit", "stop", *_STOPPED),
    (AttemptState.LAPSED, AttemptState.RECORDED): ("complete",),
    (AttemptState.LAPSED, AttemptState.FAILED): ("fail",),
    (AttemptState.LAPSED, AttemptState.BACK): ("fail",),
    (AttemptState.LAPSED, AttemptState.FENCED): ("admit", "claim", "complete", "stop", *_STOPPED),
}
