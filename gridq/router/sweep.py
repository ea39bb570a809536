"""The sweep: every router finds twice a second what nobody else takes care of. The script does the work."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from queue import SimpleQueue

from gridq.config.settings import Settings
from gridq.errors import StageQuarantined
from gridq.process.periodic import PeriodicThread
from gridq.store.capacity import MemoryGate
from gridq.store.replies import Broken, Swept
from gridq.store.scripts import Scripts
from gridq.telemetry import narration

log = logging.getLogger(__name__)

BATCH_ITEMS = 100
"""The items of each kind that one call of the script handles: other clients are served in between."""

MAX_BATCHES = 50
"""The calls of one round, before it checks the server's memory again."""


REPORT_SECONDS = 3600.0
"""A damaged entry that stays is found by every sweep, and logged once in this time."""

MAX_REPORTED = 10_000
"""The damaged entries that are remembered for that."""


class Sweeper:
    """Sweeps between `start` and `stop`. `publish_answer(job)` publishes an answer that is due.

    Answers are published on a thread of their own: a slow result backend must not delay lost stages.
    """

    def __init__(self, scripts: Scripts, config: Settings, publish_answer: Callable[[str], None]) -> None:
        self.scripts = scripts
        self.publish_answer = publish_answer
        self._gate = MemoryGate(scripts.client, scripts.keys)
        self._repeat = PeriodicThread("sweep", config.sweep_ms / 1000, self.sweep)
        self._writing: set[str] = set()
        self._due: SimpleQueue[str] = SimpleQueue()
        self._reported: dict[Broken, float] = {}
        self._writer = threading.Thread(target=self._write, name="answers", daemon=True)

    def start(self) -> None:
        self._writer.start()
        self._repeat.start()

    def stop(self) -> None:
        """Stop sweeping. Another router publishes the answers that are still due."""
        self._repeat.stop()
        self._due.put("")
        if self._writer.is_alive():
            self._writer.join(1)

    def sweep(self) -> dict[str, int]:
        """Sweep once, batch after batch while more is due. Return how much of each kind was found."""
        self._gate.check()
        found: Counter[str] = Counter()
        for _ in range(MAX_BATCHES):
            swept = self.scripts.sweep(BATCH_ITEMS, max(0, BATCH_ITEMS - len(self._writing)))
            found.update(swept.found)
            _narrate(swept)
            self._report(swept.broken)
            for job in swept.due:
                if job not in self._writing:
                    self._writing.add(job)
                    self._due.put(job)
            if not swept.more or self._repeat.stopped:
                break
        return dict(found)

    def _report(self, broken: Sequence[Broken]) -> None:
        """Log entries that no script could process, each once in REPORT_SECONDS."""
        now = time.monotonic()
        for entry in broken:
            if now - self._reported.get(entry, -REPORT_SECONDS) >= REPORT_SECONDS:
                self._reported[entry] = now
                what = f"an entry of {entry.kind}" if entry.entry else entry.kind
                log.error("%s is damaged and was left out: %r: %s", what, entry.entry, entry.fault)
        if len(self._reported) > MAX_REPORTED:
            self._reported.clear()

    def _write(self) -> None:
        while job := self._due.get():
            try:
                self.publish_answer(job)
            except Exception:  # the sweep will find it again, and the answers behind it must not wait
                log.exception("the answer of job %s cannot be published", job)
            finally:
                self._writing.discard(job)


def _narrate(swept: Swept) -> None:
    if swept.found["seats"]:
        narration.narrate("workers died", workers=swept.found["seats"])
    for loss in swept.losses:
        job, _, _, attempt, _ = loss.lease.split(":")
        fields = {"job": job, "name": loss.name, "stage": loss.path, "worker": loss.worker}
        narration.narrate("stage lost", **fields, attempt=int(attempt), after=loss.after)
    for drop in swept.dropped:
        fields = {"job": drop.job, "name": drop.name, "stage": drop.path}
        narration.narrate("stage dropped", **fields, code=StageQuarantined.code)
