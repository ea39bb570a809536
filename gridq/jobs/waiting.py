"""Wait for a job, as generators of Redis commands, so that threads and asyncio share one implementation.

Each generator yields commands and is sent their replies.
"""

from __future__ import annotations

import json
import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from gridq.errors import ConfigError, JobNotFound, NotStreamed, WaitTimeout
from gridq.jobs.record import End
from gridq.protocol import queue_names
from gridq.protocol.models import Json
from gridq.store.keys import Keys

BLOCK_SECONDS = 5.0
"""The time that one blocking command waits: less than the socket timeout."""

FULL_SERVER_PAUSE_SECONDS = 0.2
"""The pause between two polls of a server that is out of memory, and so refuses the blocking command."""

Commands = list[tuple[Any, ...]]
"""Redis commands with their arguments; several run in one transaction."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a stage's answer, with the path of the stage in the graph."""

    path: str
    value: Json


def is_blocking(commands: Commands) -> bool:
    """Return whether this is the command that blocks until a job ends.

    A server that is out of memory refuses it; treat that like no reply.
    """
    return str(commands[0][0]) == "BLMOVE"


def build_poll(keys: Keys, job: str) -> Commands:
    """Return the commands that read a job's end, whether it runs, and whether it is in the inbox."""
    return [
        ("LINDEX", keys("result", job), 0),
        ("EXISTS", keys("job", job)),
        ("EXISTS", keys("submitted", job)),
    ]


def wait_for_end(keys: Keys, job: str, timeout: float | None) -> Generator[Commands, Any, End | None]:
    """Wait for the end of a job. The result is None after `timeout` seconds. Raises JobNotFound."""
    until = None if timeout is None else time.monotonic() + timeout
    check_is_id(job)
    key = keys("result", job)
    while True:
        data, running, queued = yield build_poll(keys, job)
        if data is None and not running and not queued:
            raise build_not_found_error(job)
        wait = BLOCK_SECONDS if until is None else min(BLOCK_SECONDS, until - time.monotonic())
        if data is None and wait <= 0:
            return None
        if data is None:
            # Moving a one-element list onto itself waits for it to exist and leaves it unchanged.
            data = yield [("BLMOVE", key, key, "LEFT", "LEFT", max(wait, 0.01))]
        if data is not None:
            return End.parse(data)


def check_is_id(job: object) -> None:
    """Raise ConfigError unless `job` is text, as the id of a job is."""
    if not isinstance(job, str):
        raise ConfigError(
            f"A job is named by its id; this is a Python object of type {type(job).__name__!r}",
            {
                "path": "job",
                "expected": "the text that submit returned",
                "fix": "pass result.id"
                if hasattr(job, "id")
                else "submit it, and pass the id that submit returns",
            },
        )


def build_stream_check(keys: Keys, job: str) -> Commands:
    """Return the commands whose replies `check_streamed` takes."""
    check_is_id(job)
    return [
        *(("HMGET", keys(record, job), "agent", "stream") for record in ("submitted", "job", "summary")),
        ("EXISTS", keys("stream", job)),
    ]


def check_streamed(job: str, replies: list[Any]) -> None:
    """Raise NotStreamed if there is such a job and it does not keep the pieces of its answers."""
    *records, has_stream = replies
    for agent, stream in records:
        # A job that ended under an older gridq does not say it.
        if agent is not None and stream != b"1" and not (stream is None and has_stream):
            raise NotStreamed(
                "The job keeps no pieces to stream",
                {
                    "path": job,
                    "reason": "it was submitted without stream=True",
                    "fix": "submit it with stream=True, or wait for its answer: result(job)",
                },
            )


def read_pieces(keys: Keys, job: str, timeout: float | None) -> Generator[Commands | Piece, Any, float]:
    """Read a job's stream: yield commands, and the pieces as they come.

    After `timeout` seconds without a piece it yields an empty list. The result is how many seconds to wait
    for the job's end. Raises NotStreamed if the job keeps no pieces.
    """
    check_streamed(job, (yield build_stream_check(keys, job)))
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
    """Return the error for a wait of `timeout` seconds; `waits_for` completes "it waits for …"."""
    details = {"path": job, "job": job, "fix": "wait longer: the job continues"}
    if queue_names.NO_ROUTER in waits_for:
        details["fix"] = f"{queue_names.START_ROUTER}; the job continues then"
    if waits_for:
        details |= {"reason": f"it waits for {waits_for}", "waits_for": waits_for}
    return WaitTimeout(f"The job {job} did not end within {timeout:g} s", details)


def build_not_found_error(job: str) -> JobNotFound:
    """Return the error for a job that does not exist."""
    return JobNotFound(
        f"There is no job {job!r}",
        {"path": job, "reason": "it was never submitted, or its result has expired"},
    )
