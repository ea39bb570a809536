"""Start both sides of the HTTP benchmark: gridq and LiteLLM's proxy, in front of one upstream."""

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
from benchmarks.measure import print_progress
from benchmarks.sides import use_environment
from gridq.store.connection import connect
from gridq.store.keys import Keys
from workers.supervisor import programs
from workers.supervisor.embedded_server import EmbeddedServer, find_free_port
from workers.supervisor.grid_processes import GridProcesses
from workers.supervisor.programs import Program

CONCURRENCY = 16
READY_TIMEOUT_SECONDS = 120.0
LITELLM = "litellm[proxy]"
LITELLM_FOLDER = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gridq" / "litellm"
"""The folder of LiteLLM's virtual environment, which is reused. Delete it to install the latest release."""

WITHOUT_KEY_SETTING = "dangerously_permit_weak_or_unset_master_key"
"""LiteLLM's setting that lets its proxy start without a key, as gridq's gateway does on loopback."""

SEAT_FORMATS = {"responses": "responses = true\n", "messages": 'api = "anthropic"\n'}
"""Lines of the table of each seat whose endpoint has another API format than chat."""

LITELLM_MODELS = {
    "bench": "openai/bench",
    "responses": "openai/bench",
    "translated": "openai/chat_completions/bench",
    "messages": "anthropic/bench",
}
"""The model of LiteLLM that sends the same requests to the upstream as the seat of this name."""

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class ProgramUnavailable(Exception):
    """A program under test could not be installed or started. The message says why."""


@dataclass
class Side:
    """One side: its port, and the process ids of its programs by role."""

    name: str
    port: int
    pids: dict[str, int] = field(default_factory=dict)

    @property
    def memory(self) -> float:
        """The memory of all its programs and their children, in MB (PSS)."""
        return sum(read_shared_memory_mb(pid) for pid in self.pids.values())

    def read_cpu(self) -> dict[str, float]:
        """Return the CPU seconds used by each program."""
        return {name: read_cpu_seconds(pid) for name, pid in self.pids.items()}


class HttpSides:
    """The upstream, a grid with a gateway, and optionally LiteLLM's proxy, as a context manager.

    The grid has a server, a router, and a worker for one API-key seat `bench` with CONCURRENCY slots. `seats`
    adds more seats, by name and number of slots. Each serves the model of its name once `start_seat` has
    started it. If there is no LiteLLM, `missing_reason` says why.
    """

    def __init__(self, *, litellm: bool = True, seats: dict[str, int] | None = None) -> None:
        self.with_litellm = litellm
        self.seats = {"bench": CONCURRENCY, **(seats or {})}
        self.litellm: Side | None = None
        self.missing_reason = "" if litellm else "not requested"

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gridq-bench-")))
            upstream, pid = stack.enter_context(http_upstream.run_upstream())
            self.upstream = Side("upstream", upstream, {"upstream": pid})
            self.grid = self._start_grid(stack)
            if self.with_litellm:
                try:
                    self._start_litellm(stack)
                except ProgramUnavailable as exc:
                    self.missing_reason = str(exc)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def read_cpu(self, side: Side) -> dict[str, float]:
        """Return the CPU seconds used by the programs of `side`, the server and the upstream."""
        return {**side.read_cpu(), **self.server.read_cpu(), **self.upstream.read_cpu()}

    def start_seat(self, name: str) -> None:
        """Start the worker of another seat, and wait until its model is served."""
        key = Keys(self.config.prefix)("serving", f"llm:{name}")
        live = self.store.scard(key)
        self.grid.pids[name] = self.home.spawn(name).pid
        until = time.monotonic() + READY_TIMEOUT_SECONDS
        while self.store.scard(key) == live:
            if time.monotonic() > until:
                raise RuntimeError(f"The seat {name} did not become live; see the logs in {self.folder}")
            time.sleep(0.05)

    def _start_grid(self, stack: ExitStack) -> Side:
        server = stack.enter_context(EmbeddedServer())
        home = self.folder / "home"
        home.mkdir(mode=0o700)
        (home / "seats.toml").write_text("".join(self._make_seat_table(home, name) for name in self.seats))
        self.config = stack.enter_context(use_environment(server.url, home, 60.0, profiles="llm"))
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
        child = start_program(stack, gateway, port)
        children = self.home.children
        assert server.pid is not None
        self.server = Side("server", server.port, {"server": server.pid})
        pids = {"gateway": child.pid, "router": children["router0"].pid, "worker": children["bench"].pid}
        return Side("gridq", port, pids)

    def _make_seat_table(self, home: Path, name: str) -> str:
        key = home / f"{name}.key"
        key.write_text(f"sk-{name}\n")
        key.chmod(0o600)
        return (
            f'[[llm]]\nname = "{name}"\nurl = "http://{http_load.HOST}:{self.upstream.port}/v1"\n'
            f'key_file = "{key}"\nmodels = [{{name = "{name}"}}]\nconcurrency = {self.seats[name]}\n'
            f"allow_loopback = true\n{SEAT_FORMATS.get(name, '')}"
        )

    def _start_litellm(self, stack: ExitStack) -> None:
        """Start LiteLLM's proxy in front of the upstream. Raises ProgramUnavailable."""
        program, version = install_litellm()
        port = find_free_port()
        config = self.folder / "litellm.yaml"
        base = f"http://{http_load.HOST}:{self.upstream.port}"
        models = [
            {
                "model_name": name,
                "litellm_params": {
                    "model": model,
                    "api_base": base if model.startswith("anthropic/") else f"{base}/v1",
                    "api_key": "sk-bench",
                },
            }
            for name, model in LITELLM_MODELS.items()
        ]
        # Neither side requires a key. JSON is valid YAML.
        config.write_text(json.dumps({"model_list": models, "general_settings": {WITHOUT_KEY_SETTING: True}}))
        command = (str(program), "--config", str(config), "--host", http_load.HOST, "--port", str(port))
        env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("GRIDQ_")},
            "LITELLM_MODE": "PRODUCTION",
            "LITELLM_LOG": "ERROR",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # otherwise it downloads the cost map at startup
            "NO_PROXY": http_load.HOST,
        }
        proxy = Program("litellm", command, env, self.folder / "logs" / "litellm.log")
        child = start_program(stack, proxy, port)
        self.litellm = Side(f"LiteLLM {version}", port, {"litellm": child.pid})


def start_program(stack: ExitStack, program: Program, port: int) -> subprocess.Popen[bytes]:
    """Start a program and wait until it answers a chat on `port`. Raises ProgramUnavailable."""
    child = program.start()
    stack.callback(programs.stop_processes, [(child, 10.0)])
    request = http_load.build_chat_request(port, "Ready?")
    until = time.monotonic() + READY_TIMEOUT_SECONDS
    while not http_load.is_answered(port, request):
        if child.poll() is not None or time.monotonic() > until:
            raise ProgramUnavailable(f"{program.name} did not start: {program.last_log_line()}")
        time.sleep(0.2)
    return child


def install_litellm(folder: Path = LITELLM_FOLDER) -> tuple[Path, str]:
    """Install LiteLLM into `folder` if needed; return its program and version. Raises ProgramUnavailable."""
    program, ready = folder / "bin" / "litellm", folder / "ready"
    if not ready.exists():
        print_progress(f"Installing {LITELLM} into {folder} ...")
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        python = folder / "bin" / "python"
        pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
        for command in (
            [sys.executable, "-m", "venv", "--without-pip", str(folder)],
            [*pip, "install", "--quiet", LITELLM],
        ):
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
            )
            if done.returncode:
                lines = done.stderr.strip().splitlines() or ["pip gave no reason"]
                raise ProgramUnavailable(f"{LITELLM} cannot be installed: {lines[-1]}")
        code = "from importlib.metadata import version; print(version('litellm'))"
        found = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True)
        ready.write_text(found.stdout.strip())
    return program, ready.read_text()


def read_shared_memory_mb(pid: int) -> float:
    """Return the memory of a process and its children in MB (10⁶ bytes). Shared pages count proportionally
    (PSS).
    """
    return (
        sum(parse_pss(Path(f"/proc/{each}/smaps_rollup").read_text()) for each in list_process_tree(pid))
        / 1e6
    )


def parse_pss(text: str) -> int:
    """Return the proportional set size in bytes from the text of a `smaps_rollup`."""
    for line in text.splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise ValueError("The text has no line Pss")


def read_cpu_seconds(pid: int) -> float:
    """Return the CPU seconds used by a process and its living children."""
    return (
        sum(parse_cpu_ticks(Path(f"/proc/{each}/stat").read_text()) for each in list_process_tree(pid))
        / TICKS_PER_SECOND
    )


def parse_cpu_ticks(stat: str) -> int:
    """Return the user and system clock ticks from the text of a `/proc/<pid>/stat`."""
    fields = stat.rpartition(")")[2].split()  # a program's name may contain spaces
    return int(fields[11]) + int(fields[12])


def list_process_tree(pid: int) -> list[int]:
    """Return the ids of a process and all its descendants."""
    children: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the thread has just ended
            children += map(int, (task / "children").read_text().split())
    return [pid, *(each for child in children for each in list_process_tree(child))]
