"""How a job is waited for: the server's commands in their order, whoever sends them, on a thread or not.

Each generator yields commands and is sent their replies.
"""

from __future__ import annotations

import json
import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from gridq.errors import JobNotFound, WaitTimeout
from gridq.jobs.record import End
from gridq.protocol.models import Json
from gridq.store.keys import Keys

BLOCK_SECONDS = 5.0
"""Seconds for which one blocking command waits: less than the socket's time-out."""

FULL_SERVER_PAUSE_SECONDS = 0.2
"""Seconds between two looks where the server has no memory left and so refuses the command that blocks."""

Commands = list[tuple[Any, ...]]
"""Commands of the server, each its name and its arguments: several are done at one instant."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a stage's answer: which stage of the graph made it, and what it is."""

    path: str
    value: Json


def is_blocking(commands: Commands) -> bool:
    """Whether this is the command that blocks until a job's end is there: the same as no answer where the
    server's memory is used up and it is refused.
    """
    return str(commands[0][0]) == "BLMOVE"


def build_poll(keys: Keys, job: str) -> Commands:
    """What tells, at one instant, where a job stands: its end, does it run, is it in the inbox."""
    return [
        ("LINDEX", keys("result", job), 0),
        ("EXISTS", keys("job", job)),
        ("EXISTS", keys("submitted", job)),
    ]


def wait_for_end(keys: Keys, job: str, timeout: float | None) -> Generator[Commands, Any, End | None]:
    """Commands that wait for the end of a job; None where `timeout` seconds passed. JobNotFound."""
    until = None if timeout is None else time.monotonic() + timeout
    key = keys("result", job)
    while True:
        data, running, queued = yield build_poll(keys, job)
        if data is None and not running and not queued:
            raise build_not_found_error(job)
        wait = BLOCK_SECONDS if until is None else min(BLOCK_SECONDS, until - time.monotonic())
        if data is None and wait <= 0:
            return None
        if data is None:
            # Moving a list of one onto itself waits for it to be there and leaves it as it was.
            data = yield [("BLMOVE", key, key, "LEFT", "LEFT", max(wait, 0.01))]
        if data is not None:
            return End.read(data)


def read_pieces(keys: Keys, job: str, timeout: float | None) -> Generator[Commands | Piece, Any, float]:
    """Commands that read a job's stream, and its pieces as they come; no command at all where `timeout`
    seconds passed without a piece. The result is how long the job's end is then to be waited for.
    """
    at = b"0"
    idle_since = time.monotonic()
    while True:
        found = yield [("XREAD", "COUNT", 500, "BLOCK", 1000, "STREAMS", keys("stream", job), at)]
        for number, entry in found[0][1] if found else ():
            at = number
            idle_since = time.monotonic()
            if b"end" in entry:
                return 10.0
            yield Piece(entry[b"path"].decode(), json.loads(entry[b"piece"]))
        if not found:
            end, running, queued = yield build_poll(keys, job)
            if end is not None or not (running or queued):
                return 0.0
            if timeout is not None and time.monotonic() - idle_since > timeout:
                yield []


def build_timeout_error(job: str, timeout: float, waits_for: str) -> WaitTimeout:
    """The error of a wait that took `timeout` seconds; `waits_for` says in words what the job waits for."""
    details = {"path": job, "job": job, "fix": "wait longer; the job goes on"}
    if waits_for:
        details |= {"reason": f"it waits for {waits_for}", "waits_for": waits_for}
    return WaitTimeout(f"The job {job} was not finished within {timeout:g} s", details)


def build_not_found_error(job: str) -> JobNotFound:
    """The error of a job that is not there."""
    return JobNotFound(
        f"There is no job {job!r}", {"path": job, "reason": "never submitted, or its result has expired"}
    )
