"""One small act again and again, on a thread of its own."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable

from redis.exceptions import RedisError

from gridq.errors import GridError

log = logging.getLogger(__name__)

_JITTER = random.SystemRandom()  # its own: a program's seeded `random` is left alone


class Repeat:
    """Does `act` each `seconds`, give or take a tenth so that many programs do not keep step, until `stop`.

    What `act` raises is logged, and it is done again: a server that is away is a warning, a fault of our own
    shows its traceback in the log.
    """

    def __init__(self, name: str, seconds: float, act: Callable[[], object]) -> None:
        self.name = name
        self.seconds = seconds
        self.act = act
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns when the act that is under way, if one is, has ended (or after five seconds)."""
        self._stop.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(5)

    @property
    def stopped(self) -> bool:
        return self._stop.is_set()

    def _loop(self) -> None:
        while not self._stop.wait(self.seconds * _JITTER.uniform(0.9, 1.1)):
            try:
                self.act()
            except (RedisError, GridError, OSError) as exc:
                log.warning("%s: %s", self.name, exc)
            except Exception:
                log.exception("%s: a fault of its own", self.name)
