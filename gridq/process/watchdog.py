"""A watchdog on progress, not on the process: does what Celery is to bring still come?

A seat renews its lease by gridq's own connection. Where Celery's consumer hangs, on a connection that is dead
without a word or by a fault of its own, the seat would look alive and take nothing. It shows where a message
stands in a queue of this process's own while it has slots free: then the work is done without Celery, its
consumer is made to connect anew, and where that does not help the process ends, for a supervisor to start it
anew.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)

ASK = 1.0
"""Seconds after the last message from which it is asked whether another one waits."""

QUIET = 3.0
"""Seconds for which a message may wait before the work is done without Celery. To do so without need costs
nothing: who finds no work is as after any wake-up."""

BLIND = 5.0
"""Seconds between two looks beyond which nothing counts that was seen before: the process stood still, or the
server was away."""


def _nothing() -> None:
    """Where there is nothing to do."""


class Watchdog:
    """Watches over the consumer of a process with `concurrency` threads for its messages.

    `waits()` asks the server whether a message for this process stands in its queue; `work()` does on a
    thread what such messages ask for; `reconnect()` makes the consumer connect anew, and `give_up()`, after
    `patience` seconds (0: never), ends the process. Without these it only counts.
    """

    def __init__(
        self,
        concurrency: int,
        patience: float = 0.0,
        *,
        waits: Callable[[], bool] = lambda: False,
        work: Callable[[], None] = _nothing,
        reconnect: Callable[[], None] = _nothing,
        give_up: Callable[[], None] = _nothing,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.concurrency = concurrency
        self.patience = patience
        self._waits = waits
        self._work = work
        self._reconnect = reconnect
        self._give_up = give_up
        self._clock = clock
        self._lock = threading.Lock()
        self._taking = 0
        self._taken_at = self._looked_at = clock()
        self._since: float | None = None  # a message has waited since then
        self._helpers = 0
        self.helps = False
        """Whether the work is done without Celery now."""

    @contextmanager
    def taking(self) -> Iterator[None]:
        """Around what a message of Celery's asks for."""
        with self._lock:
            self._taking += 1
            self._taken_at = self._clock()
        try:
            yield
        finally:
            with self._lock:
                self._taking -= 1

    def look(self) -> None:
        """Look whether messages come; called with each renewal that has succeeded."""
        now = self._clock()
        blind = now - self._looked_at > BLIND
        self._looked_at = now
        with self._lock:
            could = self._taking < self.concurrency and now - self._taken_at > ASK
            last = self._taken_at
        if blind:
            self._since = None
        if not could or not self._waits():
            if self.helps:
                log.warning("Celery brings messages again")
            self._since, self.helps = None, False
            return
        self._since = now if self._since is None else max(self._since, last)
        waited = now - self._since
        if waited < QUIET:
            return
        if not self.helps:
            self.helps = True
            log.warning(
                "Celery has taken no message for %.0f s though one waits: the work is done without it, and "
                "its consumer connects anew",
                waited,
            )
            self._reconnect()
        if self.patience and waited > self.patience:
            self.patience = 0.0
            log.error(
                "Celery still takes no message after %.0f s: this process ends, to be started anew", waited
            )
            self._give_up()
        self._help()

    def _help(self) -> None:
        """As many threads as Celery would have."""
        with self._lock:
            more = self.concurrency - self._taking - self._helpers
            self._helpers += max(more, 0)
        for _ in range(more):
            threading.Thread(target=self._one, name="without Celery", daemon=True).start()

    def _one(self) -> None:
        try:
            self._work()
        except Exception as exc:  # the next look starts another
            log.warning("work without Celery: %s", exc)
        finally:
            with self._lock:
                self._helpers -= 1
