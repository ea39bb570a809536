"""The outside witness: every run of a stage is noted in a file, by the stage itself, before and after.

What it says owes nothing to Redis. A line is written by one write at the file's end, so lines of many
processes never mix: `+` or `-` (begun, ended), job, stage, attempt, process, micro-dollars it will say
that it used, monotonic ms.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gridq.errors import ChildDied, SeatUnavailable, StageError, StageTimeout
from gridq.profiles.profile import StageContext
from gridq.protocol.models import Json, Usage

FILE = "GRIDQ_CHAOS_WITNESS"
"""The environment variable that names the witness's file."""

ORDERS = "chaos"
"""The field of a stage's input that says what it shall do; see `work`."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a stage: `begun` and `ended` in monotonic ms of this machine, `ended` 0 where it did not;
    `spend` is what it used, in micro-dollars.
    """

    job: str
    stage: str
    attempt: int
    pid: int
    begun: int
    ended: int = 0
    spend: int = 0


def work(value: Json, context: StageContext) -> Json:
    """Note the run, do what the input's orders say, and answer with a digest of the whole input.

    Orders: `id` of the stage; `ms` that it takes; `flaky` n: the first n attempts fail; `fail`: all do;
    `seat` n: the seat is to blame for the first n; `die` n: the first n kill what runs them; `emit` n: so
    many pieces go to the job's stream; `say`: the answer; `size`: the answer is so many characters longer;
    `spend`: micro-dollars that are used, and with them their `tokens`. So the answer of a graph tells whether
    each of its stages got what it should.
    """
    orders: dict[str, Any] = value[ORDERS] if isinstance(value, dict) else {}
    spend = orders.get("spend", 0)
    about = f"{context.job} {orders['id']} {context.attempt} {os.getpid()} {spend}"
    _note("+", about)
    try:
        read, written = tokens(spend)
        context.report(Usage(micro_dollars=spend, tokens_in=read, tokens_out=written))
        for number in range(orders.get("emit", 0)):
            context.emit(f"{orders['id']} {number}")
        _wait(orders.get("ms", 0) / 1000, context)
        if context.attempt <= orders.get("die", 0):
            raise ChildDied("The stage was told to kill what runs it")
        if context.attempt <= orders.get("seat", 0):
            raise SeatUnavailable("The seat was told to be away", {"retry_after": 0.2})
        if orders.get("fail") or context.attempt <= orders.get("flaky", 0):
            raise StageError("The stage was told to fail")
        return answer(value)
    finally:
        _note("-", about)


def tokens(spend: int) -> tuple[int, int]:
    """The tokens, in and out, that a run uses with so many micro-dollars."""
    return spend // 10, spend // 20


def answer(value: Json) -> Json:
    """What `work` answers for an input, its orders among it: the planner works it out beforehand by this."""
    assert isinstance(value, dict)
    orders: dict[str, Any] = value[ORDERS]
    if "say" in orders:
        return bool(orders["say"])
    rest = {name: item for name, item in value.items() if name != ORDERS}
    text = json.dumps([orders["id"], rest], sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return digest + "." * orders.get("size", 0)


def read(path: Path) -> list[Run]:
    """What the witness saw, in the order of the beginnings."""
    runs: list[Run] = []
    last: dict[tuple[str, ...], int] = {}
    for sign, *about, at in _lines(path):
        key = tuple(about)
        if sign == "+":
            job, stage, attempt, pid, spend = about
            last[key] = len(runs)
            runs.append(Run(job, stage, int(attempt), int(pid), int(at), spend=int(spend)))
        else:
            runs[last[key]] = replace(runs[last[key]], ended=int(at))
    return runs


def _lines(path: Path) -> Iterator[list[str]]:
    if path.exists():
        with path.open(encoding="ascii") as file:
            for line in file:
                yield line.split()


def _note(sign: str, about: str) -> None:
    line = f"{sign} {about} {time.monotonic_ns() // 1_000_000}\n".encode("ascii")
    file = os.open(os.environ[FILE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line)
    finally:
        os.close(file)


def _wait(seconds: float, context: StageContext) -> None:
    left = seconds if context.deadline is None else context.deadline - time.monotonic()
    context.cancelled.wait(max(0.0, min(seconds, left)))
    context.check()
    if left < seconds:
        raise StageTimeout("The stage ran longer than its time limit")
