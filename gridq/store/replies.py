"""The scripts' replies as data. Each reply is read in one place, here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal, NamedTuple

Stream = Literal[False, True, "end"]
"""The content of a job's stream: nothing, the pieces of its answers and its end, or only its end."""

NoClaim = Literal["none", "full", "gone", "draining", "limited", "again"]
"""The reason for no stage: none waits for the seat; all slots are busy; the incarnation is not live; the seat
drains; its requests of the minute are used up; or more had to be searched than one call may.
"""

Ended = Literal["", "plain", "celery"]
"""The job's end by a call, if any; `celery`: its answer must be written to Celery's result backend too."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A stage as a slot claims it.

    `spec` is the step as JSON. `values` are the stored outputs of `refs`, None for a skipped step.
    `wait_ms` is the time from ready to claimed, `remaining_ms` the time to the job's deadline. `failures`,
    `losses` and `deaths` count earlier attempts: failed by their seats' fault, lost with their worker, and
    those that killed the process that ran them. `excess_bytes`: the length of its input and values if that is
    over GRIDQ_MAX_STAGE_INPUT; then none of them is there. Else 0.
    """

    lease: str
    spec: bytes
    wait_ms: float
    stream: bool
    remaining_ms: int
    priority: int
    queue: str
    agent: str
    claimed_ms: int
    failures: int
    losses: int
    deaths: int
    name: str
    refs: tuple[int, ...]
    input: bytes
    values: tuple[bytes | None, ...]
    excess_bytes: int = 0

    @property
    def job(self) -> str:
        return self.lease.split(":", 1)[0]

    @property
    def stage(self) -> str:
        """Its job and step: the same at each attempt."""
        return ":".join(self.lease.split(":", 2)[:2])

    @property
    def attempt(self) -> int:
        return int(self.lease.split(":")[3])


class Recorded(IntEnum):
    """The fate of an output that was sent to `complete`."""

    NOW = 1
    BEFORE = 0
    """The same call recorded it before; its reply was lost."""
    FENCED = -1
    """The attempt no longer counts."""
    VALUE_MISSING = -2
    """The long value that the output points to could not be written."""


class Completion(NamedTuple):
    """The reply of `complete`: the fate of the output, whether the job ended, the slot's next claim."""

    result: int
    ended: str
    next: Claim | str


class Entry(NamedTuple):
    """The reply of `take_slot`: `ok`, or the limit in the way (`rate`, `parallel`) and the ms to wait."""

    outcome: str
    wait_ms: int = 0


# -- admission -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Accepted:
    """The job was written. `dropped_jobs`: batch jobs that were ended to make room for it."""

    dropped_jobs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AlreadyKnown:
    """The job is admitted, has ended, or will be looked at: nothing was written."""


@dataclass(frozen=True, slots=True)
class NoSeat:
    """No live seat serves these queues. An element lists a stage's alternatives with `|` between them."""

    queues: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NotLent:
    """All live seats of a queue (alternatives with `|` between them) are lent to others.

    `seats`: pairs of a seat and whom it is lent to (`a:<agent>` and `t:<team>`, space separated).
    """

    queue: str
    seats: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class QueueLimitReached:
    """A queue holds `pending` stages of at most `limit`; the job needs room for `needed`.

    `has_seat`: a live seat could take them. Stages that none could take are counted apart.
    """

    queue: str
    pending: int
    limit: int
    needed: int
    has_seat: bool = True


@dataclass(frozen=True, slots=True)
class KeyRefused:
    """The API key is `missing`, `unknown` or `revoked`."""

    reason: str


@dataclass(frozen=True, slots=True)
class QuotaReached:
    """A limit of an agent or team is used up. Money is in micro-dollars.

    `what` is the limit (`agent_money`, `team_tokens`, …), `name` the agent or team. `resets_at` (ms) is the
    end of the window, None if it has not begun.
    """

    what: str
    name: str
    used: int
    reserved: int
    limit: int
    needed: int
    resets_at: int | None
    window: str


@dataclass(frozen=True, slots=True)
class SameJob:
    """The idempotency key belongs to this job, which has the same body."""

    job: str


@dataclass(frozen=True, slots=True)
class OtherBody:
    """The id or the idempotency key belongs to this job, which has another body."""

    job: str


EnqueueReply = Accepted | AlreadyKnown | KeyRefused | SameJob | OtherBody
AdmitReply = EnqueueReply | NoSeat | NotLent | QueueLimitReached | QuotaReached


class Affordable(NamedTuple):
    """The reply of `preview_quota`: the team that the agent counts for (`-`: none), the limit in the way."""

    team: str
    refusal: QuotaReached | None = None


def read_admission(reply: Sequence[bytes]) -> AdmitReply:
    """Read the reply of admit.lua."""
    word, *details = (each.decode() for each in reply)
    match word:
        case "ok" | "begun":
            return Accepted(tuple(details))
        case "no_seat":
            return NoSeat(tuple(details))
        case "not_lent":
            return NotLent(details[0], tuple(zip(details[1::2], details[2::2], strict=True)))
        case "queue":
            return QueueLimitReached(
                details[0], int(details[1]), int(details[2]), int(details[3]), details[4] == "1"
            )
        case "quota":
            return _read_quota(details)
    return _read_known(word, details)


def read_enqueued(reply: Sequence[bytes]) -> EnqueueReply:
    """Read the reply of enqueue.lua."""
    word, *details = (each.decode() for each in reply)
    return Accepted() if word == "ok" else _read_known(word, details)


def read_affordable(reply: Sequence[bytes]) -> Affordable:
    """Read the reply of preview_quota.lua."""
    team, *refusal = (each.decode() for each in reply)
    return Affordable(team, _read_quota(refusal[1:]) if refusal else None)


def _read_known(word: str, details: list[str]) -> EnqueueReply:
    match word:
        case "key":
            return KeyRefused(details[0])
        case "same":
            return SameJob(details[0])
        case "conflict":
            return OtherBody(details[0])
    return AlreadyKnown()


def _read_quota(details: list[str]) -> QuotaReached:
    what, name, used, reserved, limit, needed, resets_at, window = details
    end = int(resets_at) if resets_at else None
    return QuotaReached(what, name, int(used), int(reserved), int(limit), int(needed), end, window)


# -- claims --------------------------------------------------------------------------------------------------


def read_claim(reply: Sequence[Any]) -> Claim | str:
    """Read the claim in a script's reply, or the word for why there is none (`NoClaim`)."""
    if len(reply) == 1:
        word: str = reply[0].decode()
        return word
    meta = reply[2].decode().split(" ", 10)
    wait, stream, remaining, priority, queue, agent, now, failures, losses, deaths, name = meta
    excess = int(reply[3][1:]) if reply[3].startswith(b"!") else 0
    refs = () if excess or reply[3] == b"-" else tuple(int(ref) for ref in reply[3].split(b","))
    return Claim(
        lease=reply[0].decode(),
        spec=reply[1],
        wait_ms=float(wait),
        stream=stream == "1",
        remaining_ms=int(float(remaining)),
        priority=int(priority),
        queue=queue,
        agent=agent,
        claimed_ms=int(now),
        failures=int(failures),
        losses=int(losses),
        deaths=int(deaths),
        name=name,
        refs=refs,
        input=reply[4],
        values=tuple(reply[5:]),
        excess_bytes=excess,
    )


# -- the sweep -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Loss:
    """An attempt that was lost with its worker: the stage's path in the graph of the job called `name`.

    `after`: `again`, `quarantined`, or `plain` or `celery` if the job ended with it.
    """

    lease: str
    worker: str
    path: str
    name: str
    after: str


@dataclass(frozen=True, slots=True)
class Drop:
    """A stage whose time in quarantine is over: its job, called `name`, has failed."""

    job: str
    name: str
    path: str


@dataclass(frozen=True, slots=True)
class Broken:
    """An entry of the set `kind` that a sweep could not process, and what the server said."""

    kind: str
    entry: str
    fault: str


class Swept(NamedTuple):
    """The reply of `sweep`.

    `found`: the number of items of each sort. `due`: jobs whose Celery answer must be written. `losses`: lost
    attempts. `dropped`: stages whose quarantine is over. `more`: more is due than one call processes.
    `broken`: entries that it left out.
    """

    found: dict[str, int]
    due: list[str]
    losses: list[Loss]
    dropped: list[Drop]
    more: bool
    broken: list[Broken]


SWEPT = ("grace", "died", "seats", "due", "expired", "woken", "readmitted")
"""The sorts of items that a sweep counts: holders that got more time, lapsed leases, seats that are gone,
delays that are over, jobs that expired, wake-ups of routers, stages whose excluded seats were let in again.
"""


def read_swept(reply: Sequence[Any]) -> Swept:
    """Read the reply of sweep.lua."""
    *counts, due, lost, over, more, faults = reply
    return Swept(
        dict(zip(SWEPT, counts, strict=True)),
        [job.decode() for job in due],
        [Loss(*words) for words in _group(lost, 5)],
        [Drop(*words) for words in _group(over, 3)],
        bool(more),
        [Broken(*words) for words in _group(faults, 3)],
    )


def _group(words: Sequence[bytes], size: int) -> list[list[str]]:
    """Return the words of a flat reply, `size` of them at a time."""
    texts = [word.decode() for word in words]
    return [texts[at : at + size] for at in range(0, len(texts), size)]
