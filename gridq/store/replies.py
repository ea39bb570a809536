"""What the scripts' replies say, as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

Stream = Literal[False, True, "end"]
"""What a job's stream holds: nothing, the pieces of its answers and its end, its end alone."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One stage as a claim gives it. `spec` is the step as JSON; `values` the stored outputs of `refs` (None
    where skipped); `remaining_ms` the time to the job's deadline. `failures`, `losses` and `deaths` count the
    attempts before that failed by their seats' fault, that were lost with their worker, and that killed the
    process that ran them.
    """

    lease: str
    spec: bytes
    wait_ms: float
    stream: bool
    remaining_ms: int
    prio: int
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

    @property
    def job(self) -> str:
        return self.lease.split(":", 1)[0]

    @property
    def attempt(self) -> int:
        return int(self.lease.split(":")[3])


@dataclass(frozen=True, slots=True)
class Loss:
    """An attempt that was lost with its worker: where the stage stands in the graph of the job called `name`,
    and what came of it: `again`, `quarantined`, or `plain` or `celery` where it was the job's last chance.
    """

    lease: str
    worker: str
    path: str
    name: str
    after: str


@dataclass(frozen=True, slots=True)
class Drop:
    """A stage whose time in quarantine was over: its job, called `name`, has failed."""

    job: str
    name: str
    path: str


@dataclass(frozen=True, slots=True)
class Broken:
    """An entry of the set of keys `kind` that a sweep could not deal with, and what the server said of it."""

    kind: str
    entry: str
    fault: str


class Swept(NamedTuple):
    """What one sweep came upon: how many items of each sort, the jobs whose Celery answer is to be written,
    the attempts that were lost, the stages whose quarantine was over, whether more is due, and the entries
    that it left out.
    """

    found: dict[str, int]
    due: list[str]
    losses: list[Loss]
    dropped: list[Drop]
    more: bool
    broken: list[Broken]


def read_claim(reply: Sequence[Any]) -> Claim | str:
    """The claim in a script's reply, or its word for why there is none: none, full, gone, draining, limited,
    again."""
    if len(reply) == 1:
        word: str = reply[0].decode()
        return word
    meta = reply[2].decode().split(" ", 10)
    wait, stream, remaining, prio, queue, agent, now, failures, losses, deaths, name = meta
    refs = () if reply[3] == b"-" else tuple(int(ref) for ref in reply[3].split(b","))
    return Claim(
        lease=reply[0].decode(),
        spec=reply[1],
        wait_ms=float(wait),
        stream=stream == "1",
        remaining_ms=int(float(remaining)),
        prio=int(prio),
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
    )


def groups(words: Sequence[bytes], size: int) -> list[list[str]]:
    """A flat reply's words, `size` of them at a time."""
    told = [word.decode() for word in words]
    return [told[at : at + size] for at in range(0, len(told), size)]
