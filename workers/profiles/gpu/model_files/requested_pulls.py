"""Pull a model because a request needs it: one pull, to which every request for the model attaches.

A request that finds its model missing is handed back to its queue and tried again, so that it holds no slot
while the pull runs. One of a model API's client is refused after REFUSE_SECONDS, as long as HTTP can still
say so; a stage of a graph waits until its deadline. The pull goes on when its requests are gone.
"""

from __future__ import annotations

import collections
import json
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from gridq.config.machine_id import get_machine_id
from gridq.errors import ModelFileError, ModelInCooldown, ModelLoading, error_from_record
from gridq.profiles.profile import StageContext
from gridq.protocol.models import Json
from workers.model_apis.model_catalogue import Model
from workers.profiles.gpu.loaded_models import make_closing_error
from workers.profiles.gpu.model_files.machine_models import find_files
from workers.profiles.gpu.model_files.pulling import PullOptions, PullProgress, read_progress

REFUSE_SECONDS = 8.0
"""The gateway sends a response's head after 10 s of silence; from then on it cannot answer 503."""

POLL_SECONDS = 0.1
HOLD_SECONDS = 1.0
"""How long a request waits in its slot: a small file is here by then."""

RETRY_SECONDS = 2.0
"""After how long a request that was handed back looks again."""

DEFAULT_RETRY_AFTER_SECONDS = 30.0
MAX_RETRY_AFTER_SECONDS = 300.0
FORGET_SECONDS = 600.0
STOP_SECONDS = 2.0

MAX_KILLS = 3
"""How often in a row a pull is continued after something killed it, as the system does if memory is short."""

PULL_PROGRAM = "workers.process.model_pull"
"""The module that pulls: it also asks the grid's other machines, of which a profile knows nothing."""


class RequestedPulls:
    """The pulls of one seat. `max_bytes` limits the size of a model, `cache_bytes` that of all."""

    def __init__(self, home: Path, max_bytes: int, cache_bytes: int | None) -> None:
        self._home = home
        self._options = PullOptions(max_bytes=max_bytes, cache_bytes=cache_bytes)
        self._lock = threading.Lock()
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._kills: collections.Counter[str] = collections.Counter()
        self._is_closed = False
        self._since: dict[tuple[str, str], float] = {}

    def find_model(self, model: Model, context: StageContext, *, is_refused: bool) -> Model:
        """Return `model` with its file. Starts its pull if it is not here, or attaches to it.

        Raises ModelInCooldown, which hands the stage back, while the pull runs; with `is_refused`,
        ModelLoading after REFUSE_SECONDS. Raises ModelFileError if the pull failed, and SeatUnavailable if
        the seat closes.
        """
        started = time.monotonic()
        while True:
            found = find_files(model, self._home)
            if not found.is_reference:
                with self._lock:
                    self._since.pop((model.name, context.job), None)
                return found
            self._attach(model)
            context.check()
            if time.monotonic() - started >= HOLD_SECONDS:
                break
            time.sleep(POLL_SECONDS)
        progress = read_progress(self._home, model.name)
        loading = self._describe(progress)
        details: dict[str, Json] = {"model": model.name, "loading": loading}
        if is_refused and self._measure_wait(model.name, context.job) >= REFUSE_SECONDS:
            after = loading.get("eta", DEFAULT_RETRY_AFTER_SECONDS)
            details["retry_after"] = max(RETRY_SECONDS, min(after, MAX_RETRY_AFTER_SECONDS))
            raise ModelLoading(f"The model {model.name!r} is being downloaded", details)
        raise ModelInCooldown(
            f"The model {model.name!r} is being downloaded", {**details, "retry_after": RETRY_SECONDS}
        )

    def list_shares(self) -> dict[str, float]:
        """Return the models whose pull runs, and the share of each that is done, from 0 to 1."""
        with self._lock:
            names = [name for name, process in self._running.items() if process.poll() is None]
        found = {name: read_progress(self._home, name) for name in names}
        return {name: round(progress.share, 3) if progress else 0.0 for name, progress in found.items()}

    def close(self) -> None:
        """End the pulls of this seat. The next one goes on with what they downloaded."""
        with self._lock:
            self._is_closed = True  # a request that still waits starts no other
            processes, self._running = list(self._running.values()), {}
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            _close_input(process)

    def _attach(self, model: Model) -> None:
        """Start the pull unless it runs, or go on with one that was killed. Raises ModelFileError if it has
        just failed.
        """
        with self._lock:
            if self._is_closed:
                raise make_closing_error()
            process = self._running.get(model.name)
            if process is None:
                self._running[model.name] = self._start(model)
                return
            if process.poll() is None:
                return
            del self._running[model.name]
            _close_input(process)
            if process.returncode < 0 and self._kills[model.name] < MAX_KILLS:
                self._kills[model.name] += 1
                self._running[model.name] = self._start(model)
                return
            del self._kills[model.name]
        if not find_files(model, self._home).is_reference:
            return
        progress = read_progress(self._home, model.name)
        failure = error_from_record(progress.error) if progress is not None and progress.error else None
        reason = f"{failure.code}: {failure.message}" if failure else f"exit code {process.returncode}"
        if failure is not None and failure.reason:
            reason += f": {failure.reason}"
        raise ModelFileError(
            f"The model {model.name!r} could not be downloaded",
            {
                "model": model.name,
                "reason": reason,
                "fix": (failure.fix if failure else None) or f"gridq models pull {model.name}",
            },
        )

    def _start(self, model: Model) -> subprocess.Popen[bytes]:
        options = {
            **asdict(self._options),
            "name": model.name,
            "context": model.context,
            "families": model.families,
        }
        order = {"reference": model.file, "home": str(self._home), "options": options}
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and module, no shell
            [sys.executable, "-m", PULL_PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        assert process.stdin is not None
        with suppress(OSError):  # it has ended, as its exit code will tell
            process.stdin.write(json.dumps(order).encode() + b"\n")
            process.stdin.flush()
        return process

    def _measure_wait(self, model: str, job: str) -> float:
        """Return the seconds for which a job has waited for the model."""
        now = time.monotonic()
        with self._lock:
            self._since = {key: at for key, at in self._since.items() if now - at < FORGET_SECONDS}
            return now - self._since.setdefault((model, job), now)

    def _describe(self, progress: PullProgress | None) -> dict[str, Json]:
        """Return what a client is told: the state, the machine, the progress, and the time that is left."""
        machine = get_machine_id(self._home)
        if progress is None:
            return {"state": "resolving", "machine": machine, "progress": 0.0}
        found: dict[str, Json] = {
            "state": progress.state,
            "machine": machine,
            "progress": round(progress.share, 3),
        }
        return found if progress.eta is None else {**found, "eta": progress.eta}


def _close_input(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    with suppress(OSError):  # what it did not read
        process.stdin.close()
