"""Idle time and processes: of Linux as this machine has them, of macOS from recorded output."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from workers.owner.activity import find_owner_process
from workers.owner.activity_linux import MUTTER, LinuxActivity
from workers.owner.activity_macos import MacOSActivity
from workers.owner.activity_source import IdleTime, Process, run_program

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="reads Linux")


def print_nothing(command: Sequence[str]) -> None:
    return None


def linux(tmp_path: Path, outputs: dict[str, str] | None = None, **more: Any) -> LinuxActivity:
    """A machine whose programs print `outputs`, by the name of each."""
    printed = outputs or {}
    given: dict[str, Any] = {"environ": {}, "sessions": tmp_path / "no", "terminals": (), "displays": ()}
    return LinuxActivity(**{**given, "run": lambda command: printed.get(Path(command[0]).name), **more})


@LINUX
def test_typing_into_a_terminal_counts_as_use(tmp_path: Path) -> None:
    master, slave = os.openpty()
    try:
        name = os.ttyname(slave)
        machine = linux(tmp_path, terminals=[name])
        os.utime(name, (time.time() - 3600, time.time() - 3600))
        idle = machine.read_idle_time().seconds
        assert idle is not None
        assert idle == pytest.approx(3600, abs=5)
        os.write(master, b"ls\n")
        assert os.read(slave, 10) == b"ls\n"
        typed = machine.read_idle_time().seconds
        assert typed is not None
        assert typed < 30  # the kernel keeps it to 8 s
    finally:
        os.close(master)
        os.close(slave)


@LINUX
def test_this_machine_reports_a_time_or_a_reason() -> None:
    found = LinuxActivity().read_idle_time()
    assert found.seconds is None or found.seconds >= 0
    assert (found.seconds is None) == bool(found.reason)


def test_a_machine_without_idle_time_reports_why(tmp_path: Path) -> None:
    assert linux(tmp_path).read_idle_time() == IdleTime(
        None, "there is no terminal, no graphical session and no logind"
    )
    blind = linux(tmp_path, environ={"WAYLAND_DISPLAY": "wayland-0"}, terminals=[__file__])
    assert blind.read_idle_time().seconds is None
    (tmp_path / "X0").touch()  # of a display server that this process has no part in
    assert (
        linux(tmp_path, displays=[str(tmp_path / "X*")], terminals=[__file__]).read_idle_time().seconds
        is None
    )


@pytest.mark.parametrize(
    ("hints", "idle"),
    [
        (("yes", 600), 600),
        (("no", 600), 0),
        (("yes", 600, "yes", 60), 60),
        (("yes", 600, "no", 0), 0),
    ],
)
def test_the_idle_time_of_a_graphical_session_from_logind(
    tmp_path: Path, hints: Sequence[Any], idle: float
) -> None:
    now = time.time()
    blocks = [
        f"Type=wayland\nClass=user\nIdleHint={hint}\nIdleSinceHint={round((now - ago) * 1e6) if ago else 0}"
        for hint, ago in zip(hints[::2], hints[1::2], strict=True)
    ]
    blocks.append("Type=wayland\nClass=greeter\nIdleHint=no\nIdleSinceHint=0")
    (tmp_path / "3").touch()
    (tmp_path / "3.ref").touch()
    found = linux(tmp_path, {"loginctl": "\n\n".join(blocks) + "\n"}, sessions=tmp_path).read_idle_time()
    assert found.seconds == pytest.approx(idle, abs=5)


def test_without_a_logind_session_nobody_is_logged_in(tmp_path: Path) -> None:
    found = linux(tmp_path, {"loginctl": ""}, sessions=tmp_path).read_idle_time()
    assert found.seconds is not None
    assert found.seconds > 0
    assert linux(tmp_path, sessions=tmp_path).read_idle_time().seconds is None


def test_gnome_and_x11_report_milliseconds(tmp_path: Path) -> None:
    assert MUTTER[0] == "gdbus"
    wayland = linux(tmp_path, {"gdbus": "(uint64 421500,)\n"}, environ={"WAYLAND_DISPLAY": "wayland-0"})
    assert wayland.read_idle_time() == IdleTime(421.5)
    x11 = linux(tmp_path, {Path(sys.executable).name: "61000\n"}, environ={"DISPLAY": ":0"})
    assert x11.read_idle_time() == IdleTime(61.0)


@LINUX
def test_a_missing_display_reports_no_idle_time() -> None:
    assert (
        LinuxActivity(environ={"DISPLAY": ":4711"}, sessions=Path("/nowhere"), run=run_program)
        .read_idle_time()
        .seconds
        is None
    )


@LINUX
def test_a_program_that_hangs_or_fails_prints_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.owner.activity_source.PROGRAM_TIMEOUT_SECONDS", 0.2)
    assert run_program((sys.executable, "-c", "import time; time.sleep(60)")) is None
    assert run_program((sys.executable, "-c", "raise SystemExit(1)")) is None
    assert run_program(("no-such-program",)) is None


IOREG = """
+-o IOHIDSystem  <class IOHIDSystem, id 0x100000463, registered, matched, active, busy 0 (0 ms), retain 24>
    {
      "HIDScrollCountMaxTimeDeltaBetween" = 600
      "HIDIdleTime" = 93151482667
      "HIDParameters" = {"HIDClickTime"=500000000,"HIDIdleTime"=93151482667}
    }
"""


def test_macos_reports_hididletime() -> None:
    assert MacOSActivity(run=lambda command: IOREG).read_idle_time().seconds == pytest.approx(93.151482667)
    assert MacOSActivity(run=print_nothing).read_idle_time() == IdleTime(None, "ioreg reports no HIDIdleTime")
    ps = "    1     0     0 /sbin/launchd\n  812     1   501 node /opt/homebrew/bin/claude --resume\n"
    [first, second] = MacOSActivity(run=lambda command: ps).list_processes() or []
    assert (first.pid, first.parent, first.words) == (1, 0, ("/sbin/launchd",))
    assert (second.pid, second.parent, second.is_program("claude")) == (812, 1, True)


@pytest.mark.parametrize(
    ("words", "is_one"),
    [
        (("claude", "--resume"), True),
        (("/usr/bin/claude",), True),
        (("node", "/usr/lib/node_modules/.bin/claude"), True),
        (("node", "--enable-source-maps", "/opt/claude.js"), True),
        (("vim", "claude"), False),
        (("claude-monitor",), False),
        ((), False),
    ],
)
def test_a_program_is_found_by_its_name(words: tuple[str, ...], is_one: bool) -> None:
    assert Process(1, 0, mine=True, words=words).is_program("claude") == is_one


@LINUX
def test_the_owners_processes_differ_from_those_of_a_seat(tmp_path: Path) -> None:
    name = f"gq-{os.getpid()}"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", tmp_path / name)
    running = subprocess.Popen([str(tmp_path / name), "60"])
    try:
        found = LinuxActivity().list_processes() or []
        assert find_owner_process(name, found, grid_pids=()) is None  # this process has started it
        foreign = [
            each if each.pid != running.pid else Process(each.pid, 1, each.mine, each.words) for each in found
        ]
        assert find_owner_process(name, foreign, grid_pids=()) == running.pid
        assert find_owner_process(name, foreign, grid_pids=(running.pid,)) is None
        assert find_owner_process(f"{name}x", foreign, grid_pids=()) is None
    finally:
        running.kill()
        running.wait()
