"""The supervisor with real children and a clock that the test turns."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import wait_for
from workers.supervisor import programs
from workers.supervisor.children import EXIT_WINDOW_SECONDS, MAX_EXITS, Supervisor
from workers.supervisor.programs import Program

SLEEP = "import time; time.sleep(600)"
STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); "
    "time.sleep(600)"
)
ORDERLY = """
import signal, sys, time
def end(*_):
    print("{0}", file=open("{1}", "a"))
    sys.exit()
signal.signal(signal.SIGTERM, end)
print("up", flush=True)
time.sleep(600)
"""
PARENT = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {SLEEP!r}])
print(child.pid, flush=True)
child.wait()
"""


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class World:
    """A supervisor, what it said, whom it lost."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = Clock()
        self.messages: list[str] = []
        self.lost: list[tuple[str, int]] = []
        self.supervisor = Supervisor(
            self.messages.append,
            on_exit=lambda part, pid, died: self.lost.append((part.name, pid)),
            clock=self.clock,
        )

    def program(self, name: str, code: str = SLEEP, **more: object) -> Program:
        command = (sys.executable, "-c", code)
        return Program(name, command, dict(os.environ), self.folder / f"{name}.log", **more)  # type: ignore[arg-type]

    def process(self, name: str) -> subprocess.Popen[bytes]:
        found = self.supervisor.children[name].process
        assert found is not None
        return found

    def until_noticed(self) -> None:
        wait_for(self.supervisor.check)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    found = World(tmp_path)
    yield found
    found.supervisor.stop(lambda seconds: True)


def test_a_dead_child_is_restarted_after_a_doubling_pause(world: World) -> None:
    world.supervisor.add(world.program("a"))
    for pause in (0.5, 1.0, 2.0):
        pid = world.process("a").pid
        os.kill(pid, signal.SIGKILL)
        world.until_noticed()
        assert world.lost[-1] == ("a", pid)
        assert world.supervisor.children["a"].state == "restarting"
        world.clock.now += pause - 0.01
        assert not world.supervisor.check()
        world.clock.now += 0.02
        assert world.supervisor.check()
        assert world.process("a").pid != pid
    assert world.supervisor.children["a"].restarts == 3
    assert world.messages[0] == "a was killed by signal 9: it logged nothing; restarting in 0.5 s"


def test_a_child_that_dies_too_often_is_given_up_and_others_continue(world: World) -> None:
    world.supervisor.add(world.program("bad", "print('no such model'); raise SystemExit(2)"))
    world.supervisor.add(world.program("good"))
    good = world.process("good").pid
    for _ in range(MAX_EXITS - 1):
        world.until_noticed()
        world.clock.now += 10
        world.supervisor.check()
    world.until_noticed()
    child = world.supervisor.children["bad"]
    assert (child.state, child.restarts) == ("given up", MAX_EXITS - 1)
    assert "ended with code 2: no such model" in child.gave_up_reason
    world.clock.now += 1000
    assert not world.supervisor.check()
    assert world.process("good").pid == good


def test_rare_exits_do_not_add_up(world: World) -> None:
    world.supervisor.add(world.program("a", "raise SystemExit(1)"))
    for _ in range(MAX_EXITS + 3):
        world.until_noticed()
        world.clock.now += EXIT_WINDOW_SECONDS + 1
        world.supervisor.check()
    assert not world.supervisor.children["a"].gave_up_reason


def test_a_child_that_cannot_be_started_is_retried(world: World) -> None:
    nowhere = Program("a", ("/nowhere/at/all",), {}, world.folder / "a.log")
    world.supervisor.add(nowhere)
    assert world.supervisor.children["a"].state == "restarting"
    assert "could not be started: [Errno 2]" in world.messages[0]


def test_a_replaced_child_ends_first_and_counts_no_restart(world: World) -> None:
    world.supervisor.add(world.program("a"))
    old = world.process("a")
    world.supervisor.replace(world.program("a"))
    assert world.supervisor.children["a"].state == "stopping"
    world.until_noticed()
    assert old.poll() is not None
    assert world.process("a").pid != old.pid
    assert world.supervisor.children["a"].restarts == 0
    assert world.lost == []


def test_a_removed_child_that_does_not_end_is_killed(world: World) -> None:
    world.supervisor.add(world.program("a", STUBBORN, stop_timeout=5.0))
    wait_for((world.folder / "a.log").read_text)
    pid = world.process("a").pid
    world.supervisor.remove("a")
    assert not world.supervisor.check()
    world.clock.now += 6
    assert world.supervisor.check()
    assert world.lost == [("a", pid)]
    assert world.messages == ["a did not stop within 5 s and was killed"]
    world.until_noticed()
    assert world.supervisor.children == {}


def test_children_are_stopped_in_order(world: World) -> None:
    order = world.folder / "order"
    for name, stop_order in (("server", 3), ("router", 1), ("worker", 0), ("flower", 2)):
        world.supervisor.add(world.program(name, ORDERLY.format(name, order), stop_order=stop_order))
    for name in world.supervisor.children:
        wait_for((world.folder / f"{name}.log").read_text)
    assert world.supervisor.stop() == []
    assert order.read_text().split() == ["worker", "router", "flower", "server"]


def test_a_second_stop_does_not_wait_for_a_worker(world: World) -> None:
    world.supervisor.add(world.program("a", STUBBORN, stop_timeout=300.0))
    pid = world.process("a").pid
    wait_for((world.folder / "a.log").read_text)
    assert world.supervisor.stop(lambda seconds: True) == ["a"]
    assert world.lost == [("a", pid)]


def test_killing_a_child_kills_its_children(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    child = Program("a", (sys.executable, "-c", PARENT), dict(os.environ), log).start()
    grandchild = int(wait_for(log.read_text))
    programs.kill_process(child)

    def gone() -> bool:
        try:
            return Path(f"/proc/{grandchild}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            return True

    wait_for(gone)


def test_the_last_log_line_is_of_the_last_start(tmp_path: Path) -> None:
    program = Program("a", (sys.executable, "-c", ""), dict(os.environ), tmp_path / "a.log")
    program.log.write_text("an old error\n")
    program.start().wait()
    assert program.last_log_line() == "it logged nothing"


def test_a_large_log_is_rotated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "MAX_LOG_BYTES", 10)
    program = Program("a", (sys.executable, "-c", "print('x' * 20)"), dict(os.environ), tmp_path / "a.log")
    for _ in range(3):
        program.start().wait()
    assert program.last_log_line() == "x" * 20
    assert (tmp_path / "a.log.1").read_text() == "x" * 20 + "\n"
