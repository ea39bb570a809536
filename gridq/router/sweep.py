"""The sweep: twice a second, on every router, find what nobody else looks at. The script does the work."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from queue import SimpleQueue

from gridq.config.settings import Settings
from gridq.errors import StageQuarantined
from gridq.process.periodic import PeriodicThread
from gridq.store.capacity import Gate
from gridq.store.replies import Swept
from gridq.store.scripts import Scripts
from gridq.telemetry import narration

log = logging.getLogger(__name__)

BATCH = 200
"""Items of each sort in one call of the script: others are served between two calls."""

BATCHES = 50
"""Calls in one turn, at most: then the memory is looked at again."""


class Sweeper:
    """Sweeps between `start` and `stop`; `answer(job)` writes an answer that is due.

    Answers are written on a thread of their own: a result backend that is slow or away keeps nobody's lost
    stage waiting.
    """

    def __init__(self, scripts: Scripts, config: Settings, answer: Callable[[str], None]) -> None:
        self.scripts = scripts
        self.answer = answer
        self._gate = Gate(scripts.client, scripts.keys)
        self._repeat = PeriodicThread("sweep", config.sweep_ms / 1000, self.once)
        self._writing: set[str] = set()
        self._due: SimpleQueue[str] = SimpleQueue()
        self._writer = threading.Thread(target=self._write, name="answers", daemon=True)

    def start(self) -> None:
        self._writer.start()
        self._repeat.start()

    def stop(self) -> None:
        """End the sweeping; an answer that is due and not written is another router's."""
        self._repeat.stop()
        self._due.put("")
        if self._writer.is_alive():
            self._writer.join(1)

    def once(self) -> dict[str, int]:
        """One turn: batch after batch, as long as more is due; what was found."""
        self._gate.look()
        found: Counter[str] = Counter()
        for _ in range(BATCHES):
            swept = self.scripts.sweep(BATCH, max(0, BATCH - len(self._writing)))
            found.update(swept.found)
            _tell(swept)
            for job in swept.due:
                if job not in self._writing:
                    self._writing.add(job)
                    self._due.put(job)
            if not swept.more or self._repeat.stopped:
                break
        return dict(found)

    def _write(self) -> None:
        while job := self._due.get():
            try:
                self.answer(job)
            except Exception:  # the sweep will find it again, and those behind it are due too
                log.exception("the answer of job %s cannot be written", job)
            finally:
                self._writing.discard(job)


def _tell(swept: Swept) -> None:
    if swept.found["seats"]:
        narration.narrate("workers died", workers=swept.found["seats"])
    for loss in swept.losses:
        job, _, _, attempt, _ = loss.lease.split(":")
        about = {"job": job, "name": loss.name, "stage": loss.path, "worker": loss.worker}
        narration.narrate("stage lost", **about, attempt=int(attempt), after=loss.after)
    for entry in swept.broken:
        log.error("the sweep cannot deal with %s in %s: %s", entry.entry, entry.kind, entry.fault)
    for drop in swept.dropped:
        about = {"job": drop.job, "name": drop.name, "stage": drop.path}
        narration.narrate("stage dropped", **about, code=StageQuarantined.code)
