"""The sweep: twice a second, on every router, it finds what nobody else looks at. The script does the work;
this is its clock.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable

from redis.exceptions import RedisError

from gridq.errors import GridError
from gridq.settings import Settings
from gridq.store.scripts import Scripts

log = logging.getLogger(__name__)

_JITTER = random.SystemRandom()  # its own: a program's seeded `random` is left alone


class Sweeper:
    """Runs the sweep on a thread of its own until `stop`; `answer(job)` writes an answer that is due."""

    def __init__(self, scripts: Scripts, config: Settings, answer: Callable[[str], None]) -> None:
        self.scripts = scripts
        self.config = config
        self.answer = answer
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="sweep", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(5)

    def once(self) -> dict[str, int]:
        """One sweep; what it found."""
        found, due = self.scripts.sweep()
        for job in due:
            self.answer(job)
        return found

    def _loop(self) -> None:
        pause = self.config.sweep_ms / 1000
        while not self._stop.wait(pause * _JITTER.uniform(0.9, 1.1)):
            try:
                self.once()
            except (RedisError, GridError, OSError) as exc:
                log.warning("the sweep could not run: %s", exc)
            except Exception:
                log.exception("the sweep met a fault of its own")
