"""The sweep: twice a second, on every router, find what nobody else looks at. The script does the work."""

from __future__ import annotations

from collections.abc import Callable

from gridq import narration
from gridq.errors import StageQuarantined
from gridq.repeat import Repeat
from gridq.settings import Settings
from gridq.store.scripts import Scripts


class Sweeper:
    """Sweeps between `start` and `stop`; `answer(job)` writes an answer that is due."""

    def __init__(self, scripts: Scripts, config: Settings, answer: Callable[[str], None]) -> None:
        self.scripts = scripts
        self.answer = answer
        self._repeat = Repeat("sweep", config.sweep_ms / 1000, self.once)

    def start(self) -> None:
        self._repeat.start()

    def stop(self) -> None:
        self._repeat.stop()

    def once(self) -> dict[str, int]:
        """One sweep; what it found."""
        found, due, losses, dropped = self.scripts.sweep()
        if found["seats"]:
            narration.tell("workers dead", workers=found["seats"])
        for loss in losses:
            job, _, _, attempt, _ = loss.lease.split(":")
            about = {"job": job, "name": loss.name, "stage": loss.path, "worker": loss.worker}
            narration.tell("stage lost", **about, attempt=int(attempt), again=loss.after == "again")
        for drop in dropped:
            about = {"job": drop.job, "name": drop.name, "stage": drop.path}
            narration.tell("stage dropped", **about, code=StageQuarantined.code)
        for job in due:
            self.answer(job)
        return found
