"""The states of jobs and stages, and who moves each.

| job state | moved there by |
|---|---|
| queued | the submitter, storing graph and input in the inbox (`enqueue`) |
| running | admission (`admit`) |
| done | the completion of the last step (`complete`) |
| failed | admission refusing the graph; a step's failure that no Retry catches (`fail`, `sweep`) |
| cancelled | the caller (`cancel`) |
| expired | the sweep, at the job's deadline |

| stage state | moved there by |
|---|---|
| waiting | admission; a Retry that starts again |
| ready | the script that finished what it waited for; an operator who releases it (`quarantine`) |
| running | a seat's claim |
| done | its completion |
| skipped | the gate of the Branch arm that was not taken |
| quarantined | the second death of its runner's child (`fail`); left by a release, a drop or its time's end |
| failed | its failure; an operator who drops it (`quarantine`), the sweep at the end of its quarantine |
"""

from __future__ import annotations

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
