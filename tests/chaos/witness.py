"""The outside witness: every stage notes the start and the end of each of its runs in a file.

The file does not depend on Redis. A line is one write at the end of the file, so lines of several processes
never mix: `+` or `-` (start, end), job, stage, attempt, process, micro-dollars that it will report, monotonic
ms.
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
"""The field of a stage's input with its orders; see `work`."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a stage. `begun`, `ended`: monotonic ms of this machine; `ended` 0: it did not end. `spend`:
    micro-dollars used.
    """

    job: str
    stage: str
    attempt: int
    pid: int
    begun: int
    ended: int = 0
    spend: int = 0


def work(value: Json, context: StageContext) -> Json:
    """Note the run, follow the input's orders, and return a digest of the whole input. So the answer of a
    graph shows whether each of its stages got the right input.

    Orders: `id`: of the stage. `ms`: its duration. `flaky` n: the first n attempts fail. `fail`: all attempts
    fail. `seat` n: the first n fail through the seat. `die` n: the first n kill their process. `emit` n: n
    pieces go to the job's stream. `say`: the answer. `size`: additional characters of the answer. `spend`:
    micro-dollars used, with their `tokens`.
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
    """Return the tokens, in and out, that go with this number of micro-dollars."""
    return spend // 10, spend // 20


def answer(value: Json) -> Json:
    """Return the answer of `work` for an input with its orders. The generator of graphs computes it in
    advance.
    """
    assert isinstance(value, dict)
    orders: dict[str, Any] = value[ORDERS]
    if "say" in orders:
        return bool(orders["say"])
    rest = {name: item for name, item in value.items() if name != ORDERS}
    text = json.dumps([orders["id"], rest], sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return digest + "." * orders.get("size", 0)


def read(path: Path) -> list[Run]:
    """Return the runs in the file, in the order of their starts."""
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
