"""Run the programs of a home folder as real processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.fakes.bench_profile import BENCH
from tests.waiting import wait_for

# A child started in a script's background, as in some CI systems, would otherwise ignore Ctrl-C.
HEED = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
GRIDQ = [sys.executable, "-c", HEED + "from gridq.cli import main; main()"]


def processes(folder: Path) -> list[str]:
    """Return the command lines of the processes whose environment or arguments name `folder`; none without
    /proc.
    """
    mark = str(folder).encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes()
            if mark in command or mark in (entry / "environ").read_bytes():
                found.append(command.replace(b"\0", b" ").decode("utf-8", "replace")[:200])
        except OSError:  # it has ended, or belongs to another user
            continue
    return [command for command in found if command]


class HomeFolder:
    """A home folder with the bench profile, and its programs, whose only setting is GRIDQ_HOME."""

    def __init__(self, folder: Path, seats: str = "") -> None:
        self.folder = folder
        self.path = folder / "home"
        self.path.mkdir(mode=0o700)
        self.configure(f'profiles = ["{BENCH}"]\ndrain = 1\n')
        (self.path / "seats.toml").write_text(seats)
        quiet = {name: value for name, value in os.environ.items() if not name.startswith("GRIDQ_")}
        quiet["GRIDQ_SKIP_ENGINES"] = "1"  # those of the developer's machine
        self.env = {**quiet, "GRIDQ_HOME": str(self.path), "HOME": str(folder), "COLUMNS": "120"}
        self.started: list[subprocess.Popen[str]] = []

    def configure(self, text: str) -> None:
        (self.path / "config.toml").write_text(text)
        (self.path / "config.toml").chmod(0o600)

    def __call__(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*GRIDQ, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            env=self.env,
            check=False,
        )

    def json(self, *arguments: str) -> Any:
        done = self(*arguments, "--json")
        assert done.stdout, f"{arguments} ended with {done.returncode}: {done.stderr}"
        return json.loads(done.stdout)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a long-running program. Its output goes to files next to the home folder."""
        number = len(self.started)
        with (
            (self.folder / f"{number}.out").open("w") as out,
            (self.folder / f"{number}.err").open("w") as err,
        ):
            program = subprocess.Popen(
                [*GRIDQ, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                text=True,
                env=self.env,
            )
        self.started.append(program)
        return program

    def read_log(self, number: int = 0) -> str:
        """Return the stdout and stderr of the program with this number."""
        return (self.folder / f"{number}.out").read_text() + (self.folder / f"{number}.err").read_text()

    def state(self, name: str) -> dict[str, Any]:
        """Return the record of `gridq up` or `gridq worker`; empty if there is none."""
        try:
            found: dict[str, Any] = json.loads((self.path / f"{name}.json").read_text())
        except FileNotFoundError:
            return {}
        return found

    def ready(self, name: str = "grid") -> dict[str, Any]:
        """Wait until the record says that all parts are live; return it."""

        def there() -> dict[str, Any]:
            for number, program in enumerate(self.started):
                assert program.poll() in (None, 0), self.read_log(number)
            state = self.state(name)
            return state if state.get("ready") else {}

        return wait_for(there)

    def part(self, name: str, of: str = "grid") -> dict[str, Any]:
        return next(part for part in self.state(of)["parts"] if part["name"] == name)

    def restarted(self, name: str, pid: int, of: str = "grid") -> int:
        """Wait until a part has another process than `pid`; return the new process id."""

        def again() -> int:
            part = self.part(name, of)
            return part["pid"] if part["pid"] not in (None, pid) else 0

        return wait_for(again)

    def echo(self, text: str) -> str:
        """Run a graph on the bench seat from another process; return its output."""
        graph = self.folder / "graph.json"
        graph.write_text('{"root": {"op": "Stage", "id": "bench_echo"}}')
        done = self("run", str(graph), "--input", json.dumps(text))
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def processes(self) -> list[str]:
        """Return the command lines of the processes whose environment or arguments name the folder."""
        return processes(self.folder)

    def end(self) -> None:
        """Stop the started programs that still run, and wait for their children to end."""
        for program in self.started:
            if program.poll() is None:
                program.send_signal(signal.SIGTERM)
                try:
                    program.wait(30)
                except subprocess.TimeoutExpired:
                    program.kill()
                    program.wait()
        wait_for(lambda: not self.processes(), 60)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def port_of(state: dict[str, Any]) -> int:
    return int(state["server"].rpartition(":")[2].partition("/")[0])
