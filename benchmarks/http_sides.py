"""Both sides of the HTTP benchmark: gridq's programs and LiteLLM's proxy before one upstream."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from benchmarks import http_load, http_upstream
from benchmarks.measure import tell
from benchmarks.sides import environment
from gridq.store.connection import connect
from workers.supervisor import programs
from workers.supervisor.embedded_server import EmbeddedServer, find_free_port
from workers.supervisor.grid_processes import GridProcesses
from workers.supervisor.programs import Program

CONCURRENCY = 16
READY = 120.0
LITELLM = "litellm[proxy]"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gridq" / "litellm"
"""Where the benchmark keeps LiteLLM's virtual environment, so that it is installed once; without the folder
the newest is installed anew.
"""

OPEN = "dangerously_permit_weak_or_unset_master_key"
"""LiteLLM's setting that lets its proxy start without a key, as the grid's gateway does on loopback."""

TICKS = os.sysconf("SC_CLK_TCK")


class NotThere(Exception):
    """A program that is measured could not be installed or does not start; the message says why."""


@dataclass
class Side:
    """One side: the port it listens on, and the programs that are the whole of it by what they are."""

    name: str
    port: int
    pids: dict[str, int] = field(default_factory=dict)

    @property
    def memory(self) -> float:
        """MB of all its programs with their children (PSS)."""
        return sum(shared_out_memory(pid) for pid in self.pids.values())

    def cpu(self) -> dict[str, float]:
        """Seconds of CPU that each program has used."""
        return {name: cpu_of(pid) for name, pid in self.pids.items()}


class HttpSides:
    """The upstream, a grid with a gateway, and LiteLLM's proxy where it is wanted, as a context.

    The grid: a server, a router, and a worker of one API-key seat of LANES slots for the model `bench`.
    `seats` adds more of those, for the models of their names, each with so many slots; they run once
    `start_seat` starts them. `without` says why there is no LiteLLM.
    """

    def __init__(self, *, litellm: bool = True, seats: dict[str, int] | None = None) -> None:
        self.with_litellm = litellm
        self.seats = {"bench": CONCURRENCY, **(seats or {})}
        self.litellm: Side | None = None
        self.without = "" if litellm else "not asked for"

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gridq-bench-")))
            upstream, pid = stack.enter_context(http_upstream.running())
            self.upstream = Side("upstream", upstream, {"upstream": pid})
            self.grid = self._grid(stack)
            if self.with_litellm:
                try:
                    self._litellm(stack)
                except NotThere as exc:
                    self.without = str(exc)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def cpu(self, side: Side) -> dict[str, float]:
        """Seconds of CPU that the programs of `side`, the server and the upstream have used."""
        return {**side.cpu(), **self.server.cpu(), **self.upstream.cpu()}

    def start_seat(self, name: str) -> None:
        """Start the worker of another seat and return once its model is served."""
        live = self.store.scard(f"{self.config.prefix}.serve:llm:{name}")
        self.grid.pids[name] = self.home.spawn(name).pid
        until = time.monotonic() + READY
        while self.store.scard(f"{self.config.prefix}.serve:llm:{name}") == live:
            if time.monotonic() > until:
                raise RuntimeError(f"the seat {name} did not come live; read {self.folder}")
            time.sleep(0.05)

    def _grid(self, stack: ExitStack) -> Side:
        server = stack.enter_context(EmbeddedServer())
        home = self.folder / "home"
        home.mkdir(mode=0o700)
        (home / "seats.toml").write_text("".join(self._seat(home, name) for name in self.seats))
        self.config = stack.enter_context(environment(server.url, home, 60.0, profiles="llm"))
        self.store = connect(server.url, name="bench")
        stack.callback(self.store.close)
        self.home = stack.enter_context(GridProcesses(self.config, ["bench"], folder=self.folder / "logs"))
        port = find_free_port()
        command = (
            sys.executable,
            "-m",
            "gridq.cli",
            "gateway",
            "--host",
            http_load.HOST,
            "--port",
            str(port),
        )
        gateway = Program(
            "gateway", command, programs.make_environment(self.config), self.folder / "logs" / "gateway.log"
        )
        child = start(stack, gateway, port)
        children = self.home.children
        assert server.pid is not None
        self.server = Side("server", server.port, {"server": server.pid})
        pids = {"gateway": child.pid, "router": children["router0"].pid, "worker": children["bench"].pid}
        return Side("gridq", port, pids)

    def _seat(self, home: Path, name: str) -> str:
        key = home / f"{name}.key"
        key.write_text(f"sk-{name}\n")
        key.chmod(0o600)
        return (
            f'[[llm]]\nname = "{name}"\nurl = "http://{http_load.HOST}:{self.upstream.port}/v1"\n'
            f'key_file = "{key}"\nmodels = [{{name = "{name}"}}]\nconcurrency = {self.seats[name]}\n'
            "allow_loopback = true\n"
        )

    def _litellm(self, stack: ExitStack) -> None:
        """Start LiteLLM's proxy before the upstream. NotThere."""
        program, version = install()
        port = find_free_port()
        config = self.folder / "litellm.yaml"
        model = {
            "model_name": "bench",
            "litellm_params": {
                "model": "openai/bench",
                "api_base": f"http://{http_load.HOST}:{self.upstream.port}/v1",
                "api_key": "sk-bench",
            },
        }
        # Neither side asks for a key. JSON is YAML too.
        config.write_text(json.dumps({"model_list": [model], "general_settings": {OPEN: True}}))
        command = (str(program), "--config", str(config), "--host", http_load.HOST, "--port", str(port))
        env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("GRIDQ_")},
            "LITELLM_MODE": "PRODUCTION",
            "LITELLM_LOG": "ERROR",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it asks the internet at its start
            "NO_PROXY": http_load.HOST,
        }
        proxy = Program("litellm", command, env, self.folder / "logs" / "litellm.log")
        child = start(stack, proxy, port)
        self.litellm = Side(f"LiteLLM {version}", port, {"litellm": child.pid})


def start(stack: ExitStack, program: Program, port: int) -> subprocess.Popen[bytes]:
    """Start what listens on `port`, and return once it answers a chat. NotThere."""
    child = program.start()
    stack.callback(programs.stop_processes, [(child, 10.0)])
    request = http_load.chat(port, "Ready?")
    until = time.monotonic() + READY
    while not http_load.answers(port, request):
        if child.poll() is not None or time.monotonic() > until:
            raise NotThere(f"{program.name} did not come up: {program.last_log_line()}")
        time.sleep(0.2)
    return child


def install(folder: Path = CACHE) -> tuple[Path, str]:
    """LiteLLM's program and version; installed into `folder` where it is not there yet. NotThere: why."""
    program, ready = folder / "bin" / "litellm", folder / "ready"
    if not ready.exists():
        tell(f"Installing {LITELLM} into {folder} ...")
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        python = folder / "bin" / "python"
        for command in (
            [sys.executable, "-m", "venv", str(folder)],
            [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", LITELLM],
        ):
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
            )
            if done.returncode:
                lines = done.stderr.strip().splitlines() or ["no reason given"]
                raise NotThere(f"{LITELLM} cannot be installed: {lines[-1]}")
        asked = "from importlib.metadata import version; print(version('litellm'))"
        found = subprocess.run([str(python), "-c", asked], capture_output=True, text=True, check=True)
        ready.write_text(found.stdout.strip())
    return program, ready.read_text()


def shared_out_memory(pid: int) -> float:
    """MB (10⁶ bytes) of a process and its children. What several share is shared out among them."""
    return sum(pss(Path(f"/proc/{each}/smaps_rollup").read_text()) for each in family(pid)) / 1e6


def pss(text: str) -> int:
    """The bytes that a `smaps_rollup` tells of: the proportional share, which counts nothing twice."""
    for line in text.splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise ValueError("no line Pss")


def cpu_of(pid: int) -> float:
    """Seconds of CPU that a process and its living children have used."""
    return sum(ticks(Path(f"/proc/{each}/stat").read_text()) for each in family(pid)) / TICKS


def ticks(stat: str) -> int:
    """The clock ticks, user and system, in the text of a `/proc/<pid>/stat`."""
    fields = stat.rpartition(")")[2].split()  # a program's name may hold blanks
    return int(fields[11]) + int(fields[12])


def family(pid: int) -> list[int]:
    """A process and all under it."""
    children: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # a thread that has just ended
            children += map(int, (task / "children").read_text().split())
    return [pid, *(each for child in children for each in family(child))]
