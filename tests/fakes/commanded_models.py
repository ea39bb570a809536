"""A profile whose models load and unload by command, without a device."""

from __future__ import annotations

import threading

from gridq.errors import SeatUnavailable
from gridq.profiles.profile import StageContext
from workers.profiles.gpu import GpuProfile


class CommandedModels(GpuProfile):
    """Models load at once, but for `slow`, which loads until `go`, `broken` and `faulty`. `log` has what was
    done, such as `+big` and `-big`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.log: list[str] = []
        self.go = threading.Event()

    def load(self, model: str, context: StageContext) -> None:
        if model == "slow":
            self.go.wait(30)
        if model == "broken":
            raise SeatUnavailable("no such model", {"model": model, "fix": "ask for another"})
        if model == "faulty":
            raise RuntimeError("a fault of the profile")
        self.log.append(f"+{model}")

    def unload(self, model: str) -> None:
        self.log.append(f"-{model}")
