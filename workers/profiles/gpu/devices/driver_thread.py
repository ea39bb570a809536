"""One thread for the calls of one driver: a driver that hangs holds this thread and nobody else."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Any, TypeVar

from workers.profiles.gpu.devices.device import DriverTimeout

T = TypeVar("T")


class DriverThread:
    """Makes the calls of one driver, one after the other, each with a time limit for its caller.

    A wedged driver keeps a thread forever, in the kernel, where nothing ends it. So there is one, made by the
    first call; while it is stuck, further calls fail at once.
    """

    def __init__(self, driver: str) -> None:
        self._driver = driver
        self._lock = threading.Lock()
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._began: float | None = None  # when the call under way began, of the monotonic clock

    def call(self, function: Callable[[], T], seconds: float) -> T:
        """Return what `function` returns, or raise what it raises.

        Raises DriverTimeout if there is no answer within `seconds`, at once if an earlier call has been
        waiting longer than that.
        """
        if self.stuck_seconds > seconds:
            raise self._make_timeout()
        future: Future[T] = Future()
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._make_calls, name=f"gridq-{self._driver}", daemon=True
                )
                self._thread.start()
        self._calls.put((function, future))
        try:
            return future.result(seconds)
        except TimeoutError:
            if not future.done():
                future.cancel()  # unless it is the one under way
                raise self._make_timeout() from None
            raise

    @property
    def stuck_seconds(self) -> float:
        """How long the call under way has been waiting for the driver; 0 if there is none."""
        began = self._began
        return 0.0 if began is None else time.monotonic() - began

    def _make_timeout(self) -> DriverTimeout:
        return DriverTimeout(
            f"The {self._driver} driver has not answered for {self.stuck_seconds:.1f} s; "
            "if that goes on, restart the machine"
        )

    def _make_calls(self) -> None:
        while True:
            function, future = self._calls.get()
            if not future.set_running_or_notify_cancel():
                continue
            self._began = time.monotonic()
            try:
                result = function()
            except BaseException as exc:
                with contextlib.suppress(InvalidStateError):
                    future.set_exception(exc)
            else:
                with contextlib.suppress(InvalidStateError):
                    future.set_result(result)
            self._began = None
