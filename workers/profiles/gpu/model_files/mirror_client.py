"""Fetch a model's file from a machine of the grid, by its digest.

Nothing of a mirror is believed: redirects are not followed, no more bytes are taken than the file has, one
that hangs or is slow gives way to the next source, and the caller checks the digest.
"""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, BinaryIO

import httpx

from workers.profiles.gpu.model_files.downloads import Report, Source, SourceFailed
from workers.profiles.gpu.model_files.mirror_protocol import PATH, FindMirrors, Mirror, SharedModel, sign
from workers.profiles.gpu.model_files.references import HubReference

CONNECT_SECONDS = 3.0
READ_SECONDS = 10.0
"""A mirror that sends nothing for so long has failed, and so has one whose answer has not begun by then."""

MIN_BYTES_PER_SECOND = 500_000
PACE_SECONDS = 10.0
"""A mirror that is slower than this over this time gives way to another source, if there is one."""

REPORT_BYTES = 1024 * 1024

_RANDOM = random.SystemRandom()


@dataclass(frozen=True)
class MirrorSource:
    """One file at one mirror."""

    mirror: Mirror
    sha256: str
    unreachable: set[str]
    """Gets the machine's name if it cannot be reached."""
    is_origin: bool = False

    @property
    def name(self) -> str:
        return self.mirror.machine

    def fetch(self, file: BinaryIO, size: int | None, report: Report, *, is_last: bool) -> None:
        offered = self.mirror.find_file(self.sha256)
        if offered is None or size not in (None, offered.size):
            raise SourceFailed("it has a file of another size")
        start = file.seek(0, os.SEEK_END)
        headers = {"authorization": sign(self.mirror.secret, self.sha256), "accept-encoding": "identity"}
        if start:
            headers["range"] = f"bytes={start}-"
        limits = httpx.Timeout(READ_SECONDS, connect=CONNECT_SECONDS)
        url = f"{self.mirror.url}{PATH}{self.sha256}"
        try:
            with (
                _HeadLimit() as limit,
                httpx.Client(timeout=limits, follow_redirects=False, trust_env=False) as client,
                client.stream("GET", url, headers=headers, extensions={"trace": limit.note}) as answer,
            ):
                limit.lift()
                _check_answer(answer, start, offered.size)
                _copy(answer, file, start, offered.size, report, is_last=is_last)
        except (httpx.ConnectError, httpx.ConnectTimeout) as exc:
            self.unreachable.add(self.name)
            raise SourceFailed(type(exc).__name__) from None
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as exc:  # the last: a host that is no name
            raise SourceFailed(type(exc).__name__) from None


class _HeadLimit:
    """Cuts the connection unless the head of its answer is here in time. A timeout of reads does not: one
    line after the other may come, or one interim answer after the other, without end.
    """

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._timer = threading.Timer(CONNECT_SECONDS + READ_SECONDS, self._cut)
        self._timer.daemon = True

    def __enter__(self) -> _HeadLimit:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.lift()

    def note(self, event: str, details: dict[str, Any]) -> None:
        """Note the connection, as httpx reports it."""
        if event == "connection.connect_tcp.complete":
            self._socket = details["return_value"].get_extra_info("socket")

    def lift(self) -> None:
        self._timer.cancel()

    def _cut(self) -> None:
        if self._socket is not None:
            with suppress(OSError):  # it has ended
                self._socket.shutdown(socket.SHUT_RDWR)


def _check_answer(answer: httpx.Response, start: int, size: int) -> None:
    """Raise SourceFailed unless the answer is the rest of the file from `start` on."""
    if answer.status_code == 503:
        raise SourceFailed("it already serves as many machines as it may", is_temporary=True)
    if answer.status_code == 403:
        raise SourceFailed("it refused the signature: are the clocks of both machines right?")
    wanted = 206 if start else 200
    if answer.status_code != wanted:
        raise SourceFailed(f"it answered {answer.status_code}")
    length = answer.headers.get("content-length")
    if length is None or "transfer-encoding" in answer.headers:  # chunks may be empty, without end
        raise SourceFailed("it did not say how much it sends")
    if length != str(size - start):
        raise SourceFailed("it has a file of another size")
    if start and answer.headers.get("content-range") != f"bytes {start}-{size - 1}/{size}":
        raise SourceFailed("it answered with another part of the file")


def _copy(
    answer: httpx.Response, file: BinaryIO, start: int, size: int, report: Report, *, is_last: bool
) -> None:
    """Append what the answer has: as many bytes as its head says, else httpx raises an error."""
    done = reported = start
    pace_at, pace_done = time.monotonic(), start
    report(done, size, "downloading")
    for chunk in answer.iter_raw():
        file.write(chunk)
        done += len(chunk)
        now = time.monotonic()
        if done - reported >= REPORT_BYTES or done == size or now - pace_at >= PACE_SECONDS:
            reported = done
            report(done, size, "downloading")
        if now - pace_at >= PACE_SECONDS and done < size:
            if not is_last and done - pace_done < MIN_BYTES_PER_SECOND * (now - pace_at):
                raise SourceFailed("it is slow", is_temporary=True)
            pace_at, pace_done = now, done


class Mirrors:
    """The mirrors that one pull may use: all but this machine, looked up when the first file is missing."""

    def __init__(self, find: FindMirrors, machine: str) -> None:
        self._unreachable: set[str] = set()  # each may cost CONNECT_SECONDS, once
        self._find: Callable[[], list[Mirror]] = lambda: [each for each in find() if each.machine != machine]

    @cached_property
    def _mirrors(self) -> list[Mirror]:
        found = self._find()
        _RANDOM.shuffle(found)  # so that not all machines ask the same one
        return found

    def list_sources(self, sha256: str | None) -> list[Source]:
        """Return the mirrors that have the file with this digest."""
        if sha256 is None:
            return []
        return [
            MirrorSource(each, sha256, self._unreachable)
            for each in self._mirrors
            if each.machine not in self._unreachable and each.find_file(sha256) is not None
        ]

    def find_size(self, sha256: str) -> int | None:
        """Return the size of the file with this digest, None if no mirror has it."""
        return next((file.size for each in self._mirrors if (file := each.find_file(sha256))), None)

    def find_model(self, reference: HubReference) -> tuple[SharedModel, str] | None:
        """Return the model that a mirror pulled last by this reference, and the machine's name."""
        found = [(model, each) for each in self._mirrors for model in each.models if model.answers(reference)]
        if not found:
            return None
        model, mirror = max(found, key=lambda pair: pair[0].pulled_at)
        return model, mirror.machine
