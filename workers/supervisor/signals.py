"""Signals to wait for, so that a program's loop handles them between its own steps."""

from __future__ import annotations

import select
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Self

from gridq.cli.interrupts import SIGNAL_EXIT_BASE


class SignalQueue:
    """A context in which the signals `numbers`, and the end of a child, only end a `wait`. Use it in the main
    thread.
    """

    def __init__(self, *numbers: signal.Signals) -> None:
        self.numbers = numbers

    def __enter__(self) -> Self:
        self._read, self._write = socket.socketpair()
        self._read.setblocking(False)
        self._write.setblocking(False)
        self._wakeup = signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)
        self._before = {
            number: signal.signal(number, lambda *_: None) for number in (*self.numbers, signal.SIGCHLD)
        }
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup)
        self._read.close()
        self._write.close()

    def wait(self, seconds: float) -> list[int]:
        """Wait up to `seconds` for a signal or the end of a child. Return the signals received."""
        if not select.select([self._read], [], [], seconds)[0]:
            return []
        try:
            received = self._read.recv(4096)
        except BlockingIOError:
            return []
        return [number for number in received if number in self.numbers]


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """A context in which SIGTERM and SIGHUP raise SystemExit, so that cleanup runs."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(SIGNAL_EXIT_BASE + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
