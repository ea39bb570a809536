"""Threads that do one small thing again and again."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable

from redis.exceptions import RedisError

from gridq.errors import GridError

log = logging.getLogger(__name__)

_JITTER = random.SystemRandom()  # its own, so that a program's seeded `random` is left alone


class PeriodicThread:
    """Calls `act` every `seconds`, and soon after `hurry`, until `stop`. The pause varies by a tenth so
    that programs do not keep step.

    What `act` raises is logged, and the thread goes on: an error of gridq, the server or the system as a
    warning, any other exception with its traceback.
    """

    def __init__(self, name: str, seconds: float, act: Callable[[], object]) -> None:
        self.name = name
        self.seconds = seconds
        self.act = act
        self._stop = threading.Event()
        self._due = threading.Event()
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def hurry(self) -> None:
        """Call `act` as soon as a call that is under way has ended."""
        self._due.set()

    def stop(self) -> None:
        """Stop, and wait up to five seconds for a call that is under way."""
        self._stop.set()
        self._due.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(5)

    @property
    def stopped(self) -> bool:
        return self._stop.is_set()

    def _loop(self) -> None:
        while True:
            self._due.wait(self.seconds * _JITTER.uniform(0.9, 1.1))
            self._due.clear()
            if self._stop.is_set():
                return
            try:
                self.act()
            except (RedisError, GridError, OSError) as exc:
                log.warning("%s: %s", self.name, exc)
            except Exception:
                log.exception("%s failed", self.name)
