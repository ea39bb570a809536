"""A watchdog on Celery's consumer.

A seat renews its lease on gridq's own connection. If Celery's consumer hangs, on a dead connection or by a
fault of its own, the seat looks alive and takes no work. The sign is a message that waits in this process's
own queue while it has free slots. Then the watchdog does the work without Celery and makes its consumer
reconnect. If that does not help, it ends the process, so that a supervisor starts it again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)

QUIET_SECONDS = 1.0
"""The time after the last message until the watchdog asks whether another one waits."""

STALLED_SECONDS = 3.0
"""The wait of a message after which the work is done without Celery. If needless it does no harm: a thread
that finds no work ends.
"""

GAP_SECONDS = 5.0
"""A longer gap between two checks voids what was seen: the process stood still, or the server was away."""


class Watchdog:
    """Watches the consumer of a process with `concurrency` threads for its messages.

    `message_waits()` asks the server whether a message for this process is in its queue. `work()` does on a
    thread what such messages ask for. `reconnect()` makes the consumer connect again. `give_up()` ends the
    process, `patience` seconds after the first sign (0: never).
    """

    def __init__(
        self,
        concurrency: int,
        patience: float,
        *,
        message_waits: Callable[[], bool],
        work: Callable[[], None],
        reconnect: Callable[[], None],
        give_up: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.concurrency = concurrency
        self.patience = patience
        self.bypasses_celery = False
        """True while the work is done without Celery."""
        self._message_waits = message_waits
        self._work = work
        self._reconnect = reconnect
        self._give_up = give_up
        self._clock = clock
        self._lock = threading.Lock()
        self._handling = 0  # messages, now
        self._last_message = self._last_check = clock()
        self._waiting_since: float | None = None
        self._helpers = 0

    @contextmanager
    def handling_message(self) -> Iterator[None]:
        """Enclose what a message of Celery's asks for, by `with` or as a decorator."""
        with self._lock:
            self._handling += 1
            self._last_message = self._clock()
        try:
            yield
        finally:
            with self._lock:
                self._handling -= 1

    def check(self) -> None:
        """Check whether messages arrive. Call it after each renewal that succeeded."""
        now = self._clock()
        gap = now - self._last_check
        self._last_check = now
        with self._lock:
            last = self._last_message
            could_take = self._handling < self.concurrency and now - last > QUIET_SECONDS
        if gap > GAP_SECONDS:
            self._waiting_since = None
        if not could_take or not self._message_waits():
            if self.bypasses_celery:
                log.warning("Celery delivers messages again")
            self._waiting_since, self.bypasses_celery = None, False
            return
        self._waiting_since = now if self._waiting_since is None else max(self._waiting_since, last)
        waited = now - self._waiting_since
        if waited < STALLED_SECONDS:
            return
        if not self.bypasses_celery:
            self.bypasses_celery = True
            log.warning(
                "Celery has taken no message for %.0f s though one waits: the work is done without it, and "
                "its consumer reconnects",
                waited,
            )
            self._reconnect()
        if self.patience and waited > self.patience:
            self.patience = 0.0
            log.error("Celery still takes no message after %.0f s: this process ends", waited)
            self._give_up()
        self._start_helpers()

    def _start_helpers(self) -> None:
        """Start as many threads as Celery would have."""
        with self._lock:
            missing = self.concurrency - self._handling - self._helpers
            self._helpers += max(missing, 0)
        for _ in range(missing):
            threading.Thread(target=self._help, name="without Celery", daemon=True).start()

    def _help(self) -> None:
        try:
            self._work()
        except Exception as exc:  # the next check starts another
            log.warning("work without Celery: %s", exc)
        finally:
            with self._lock:
                self._helpers -= 1
