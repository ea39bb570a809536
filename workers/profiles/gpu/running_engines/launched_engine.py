"""An engine that the seat's worker starts by `command`, restarts when it ends, and ends with itself."""

from __future__ import annotations

import collections
import logging
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gridq.errors import SeatUnavailable
from workers.profiles.gpu.memory.engine_memory import EngineMemory, find_devices
from workers.profiles.gpu.model_process import drop_secrets
from workers.profiles.gpu.running_engines import engine_launcher

log = logging.getLogger(__name__)

HOST = "127.0.0.1"
PORT_PLACE = "{port}"
FIRST_DELAY_SECONDS = 1.0
MAX_DELAY_SECONDS = 60.0
WINDOW_SECONDS = 600.0
MAX_EXITS = 5
"""Ends within WINDOW_SECONDS after which the engine is left alone until the first of them is out of it."""

MEMORY_RETRY_SECONDS = 5.0
"""Time after which an engine is tried again for which there was no room."""

MAX_LOG_BYTES = 8 * 1024 * 1024
STOP_MARGIN_SECONDS = 2.0


class LaunchedEngine:
    """The engine of one seat. `on_start` gets its URL each time that it is started, on a thread of its own.

    The kernel chooses its port, which replaces `{port}` in the command and in `env`; without such a place the
    command gets `--host 127.0.0.1 --port …` at its end. `devices` are those that it sees (None: all), by name
    or UUID. It is not started before `memory_mb`, if given, are reserved for it on each of them. Its output
    goes to `log`. `pass_env` are variables that it gets although they look like secrets.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        on_start: Callable[[str], None],
        *,
        env: Mapping[str, str],
        devices: Sequence[str] | None,
        pass_env: Sequence[str],
        memory_mb: int | None = None,
    ) -> None:
        self.reason = "it is being started"
        """The reason why it does not run; empty while its process does."""
        self._command = command
        self._log = log
        self._on_start = on_start
        self._env = env
        self._devices = devices
        self._pass_env = pass_env
        self._memory = EngineMemory(log.stem, devices, memory_mb)
        self._exits: collections.deque[float] = collections.deque(maxlen=MAX_EXITS)
        self._stopped = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, name="gridq-launch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End the engine with its whole process group, and wait for it."""
        self._stopped.set()
        process = self._process
        if process is not None and process.stdin is not None:
            process.stdin.close()
        if self._thread.ident is not None:
            self._thread.join(engine_launcher.STOP_SECONDS + STOP_MARGIN_SECONDS)

    def _run(self) -> None:
        while not self._stopped.is_set():
            if shortage := self._reserve_memory():
                self.reason = shortage
                self._stopped.wait(MEMORY_RETRY_SECONDS)
                continue
            try:
                how = self._run_once()
            finally:
                self._memory.release()
            if self._stopped.is_set():
                return
            self._exits.append(time.monotonic())
            delay = self._choose_delay()
            # What it printed is for the owner alone: others read the reason too.
            log.warning("%s %s: %s", self._command[0], how, self._read_last_line())
            self.reason = f"it {how}; the next try is in {delay:.0f} s; its log is logs/{self._log.name}"
            self._stopped.wait(delay)

    def _reserve_memory(self) -> str:
        """Return why the engine's memory cannot be reserved now, "" if a start can be tried."""
        try:
            return self._memory.reserve()
        except SeatUnavailable as exc:
            return f"{exc.message}: {exc.reason}"
        except (ValueError, OSError):  # the start says what is wrong with the devices
            return ""

    def measure_memory(self) -> None:
        """State in the books of its devices what the running engine takes."""
        process = self._process
        if process is not None and process.poll() is None:
            self._memory.settle(process.pid)

    def _run_once(self) -> str:
        """Start the engine and wait for its end. Return how it ended."""
        try:
            port = choose_port()
            environment = self._make_environment(port)
            self._log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._log.is_file() and self._log.stat().st_size > MAX_LOG_BYTES:
                self._log.replace(self._log.with_suffix(".log.1"))
            with self._log.open("ab") as output:
                process = self._process = subprocess.Popen(  # noqa: S603 our own module; the owner's command
                    [sys.executable, "-I", engine_launcher.__file__, *self._fill(port)],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=output,
                    env=environment,
                    start_new_session=True,
                )
        except (OSError, ValueError) as exc:
            return f"cannot be started ({exc})"
        self._memory.assign(process.pid)
        self.reason = ""
        self._on_start(f"http://{HOST}:{port}")
        if self._stopped.is_set() and process.stdin is not None:  # closed while it was being started
            process.stdin.close()
        code = process.wait()
        if process.stdin is not None:
            process.stdin.close()
        return f"ended with code {code}"

    def _choose_delay(self) -> float:
        now = time.monotonic()
        recent = [at for at in self._exits if at > now - WINDOW_SECONDS]
        if len(recent) >= MAX_EXITS:
            return recent[0] + WINDOW_SECONDS - now
        return min(FIRST_DELAY_SECONDS * 2.0 ** (len(recent) - 1), MAX_DELAY_SECONDS)

    def _fill(self, port: int) -> list[str]:
        filled = [part.replace(PORT_PLACE, str(port)) for part in self._command]
        if any(PORT_PLACE in part for part in (*self._command, *self._env.values())):
            return filled
        return [*filled, "--host", HOST, "--port", str(port)]

    def _make_environment(self, port: int) -> dict[str, str]:
        """Return the engine's environment: no secret of gridq's, the device mask, and the owner's variables.
        Nothing of it leads the engine's Python to gridq's packages.

        Raises ValueError for a device that this machine does not have.
        """
        environment = drop_secrets(self._pass_env)
        if self._devices is not None:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(_find_uuids(self._devices))
        own = {name: value.replace(PORT_PLACE, str(port)) for name, value in self._env.items()}
        return {**environment, **own}

    def _read_last_line(self) -> str:
        try:
            with self._log.open("rb") as file:
                file.seek(max(0, self._log.stat().st_size - 4096))
                lines = file.read().decode("utf-8", "replace").strip().splitlines()
        except OSError:
            return ""
        return lines[-1].strip()[:200] if lines else ""


def choose_port() -> int:
    """Return a port of the loopback interface that is free now."""
    with socket.socket() as chosen:
        chosen.bind((HOST, 0))
        return int(chosen.getsockname()[1])


def _find_uuids(names: Sequence[str]) -> list[str]:
    """Return the UUIDs of devices by their names (`gpu0`); a UUID stays as it is."""
    if all(name.startswith(("GPU-", "MIG-")) for name in names):
        return list(names)
    return [device.uuid for device in find_devices(names) if device.uuid]
