"""Whether somebody uses the machine: Linux as it is here, the others by what their systems document."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from workers.owner.idle import Process, Told, own_use
from workers.owner.idle_linux import MUTTER, Linux, ask
from workers.owner.idle_macos import MacOS
from workers.owner.idle_windows import Windows

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="as Linux tells it")


def nothing(command: Sequence[str]) -> None:
    return None


def linux(tmp_path: Path, said: dict[str, str] | None = None, **more: Any) -> Linux:
    """One that is told `said` by programs, by the name of each."""
    answers = said or {}
    given: dict[str, Any] = {"environ": {}, "sessions": tmp_path / "no", "terminals": (), "displays": ()}
    return Linux(**{**given, "ask": lambda command: answers.get(Path(command[0]).name), **more})


@LINUX
def test_what_is_typed_into_a_terminal_is_use(tmp_path: Path) -> None:
    master, slave = os.openpty()
    try:
        name = os.ttyname(slave)
        machine = linux(tmp_path, terminals=[name])
        os.utime(name, (time.time() - 3600, time.time() - 3600))
        idle = machine.idle().seconds
        assert idle is not None
        assert idle == pytest.approx(3600, abs=5)
        os.write(master, b"ls\n")
        assert os.read(slave, 10) == b"ls\n"
        typed = machine.idle().seconds
        assert typed is not None
        assert typed < 30  # the kernel keeps it to 8 s
    finally:
        os.close(master)
        os.close(slave)


@LINUX
def test_the_machine_here_answers_whatever_it_has() -> None:
    told = Linux().idle()
    assert told.seconds is None or told.seconds >= 0
    assert (told.seconds is None) == bool(told.why)


def test_a_machine_that_cannot_tell_says_why(tmp_path: Path) -> None:
    assert linux(tmp_path).idle() == Told(
        None, "there is no terminal, no graphical session and no logind that would tell of its use"
    )
    blind = linux(tmp_path, environ={"WAYLAND_DISPLAY": "wayland-0"}, terminals=[__file__])
    assert blind.idle().seconds is None
    (tmp_path / "X0").touch()  # of a display server that this process has no part in
    assert linux(tmp_path, displays=[str(tmp_path / "X*")], terminals=[__file__]).idle().seconds is None


@pytest.mark.parametrize(
    ("hints", "idle"),
    [
        (("yes", 600), 600),
        (("no", 600), 0),
        (("yes", 600, "yes", 60), 60),
        (("yes", 600, "no", 0), 0),
    ],
)
def test_a_graphical_session_tells_by_logind(tmp_path: Path, hints: Sequence[Any], idle: float) -> None:
    now = time.time()
    blocks = [
        f"Type=wayland\nClass=user\nIdleHint={hint}\nIdleSinceHint={round((now - ago) * 1e6) if ago else 0}"
        for hint, ago in zip(hints[::2], hints[1::2], strict=True)
    ]
    blocks.append("Type=wayland\nClass=greeter\nIdleHint=no\nIdleSinceHint=0")
    (tmp_path / "3").touch()
    (tmp_path / "3.ref").touch()
    told = linux(tmp_path, {"loginctl": "\n\n".join(blocks) + "\n"}, sessions=tmp_path).idle()
    assert told.seconds == pytest.approx(idle, abs=5)


def test_nobody_is_logged_in_where_logind_has_no_session(tmp_path: Path) -> None:
    told = linux(tmp_path, {"loginctl": ""}, sessions=tmp_path).idle()
    assert told.seconds is not None
    assert told.seconds > 0
    assert linux(tmp_path, sessions=tmp_path).idle().seconds is None


def test_gnome_and_x11_tell_to_the_millisecond(tmp_path: Path) -> None:
    assert MUTTER[0] == "gdbus"
    wayland = linux(tmp_path, {"gdbus": "(uint64 421500,)\n"}, environ={"WAYLAND_DISPLAY": "wayland-0"})
    assert wayland.idle() == Told(421.5)
    x11 = linux(tmp_path, {Path(sys.executable).name: "61000\n"}, environ={"DISPLAY": ":0"})
    assert x11.idle() == Told(61.0)


@LINUX
def test_a_display_that_is_not_there_is_no_answer() -> None:
    assert Linux(environ={"DISPLAY": ":4711"}, sessions=Path("/nowhere"), ask=ask).idle().seconds is None


@LINUX
def test_a_program_that_hangs_or_fails_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.owner.idle_linux.PATIENCE", 0.2)
    assert ask((sys.executable, "-c", "import time; time.sleep(60)")) is None
    assert ask((sys.executable, "-c", "raise SystemExit(1)")) is None
    assert ask(("no-such-program",)) is None


IOREG = """
+-o IOHIDSystem  <class IOHIDSystem, id 0x100000463, registered, matched, active, busy 0 (0 ms), retain 24>
    {
      "HIDScrollCountMaxTimeDeltaBetween" = 600
      "HIDIdleTime" = 93151482667
      "HIDParameters" = {"HIDClickTime"=500000000,"HIDIdleTime"=93151482667}
    }
"""


def test_macos_tells_by_hididletime() -> None:
    assert MacOS(ask=lambda command: IOREG).idle().seconds == pytest.approx(93.151482667)
    assert MacOS(ask=nothing).idle() == Told(None, "ioreg tells no HIDIdleTime")
    ps = "    1     0     0 /sbin/launchd\n  812     1   501 node /opt/homebrew/bin/claude --resume\n"
    [first, second] = MacOS(ask=lambda command: ps).processes() or []
    assert (first.pid, first.parent, first.words) == (1, 0, ("/sbin/launchd",))
    assert (second.pid, second.parent, second.is_program("claude")) == (812, 1, True)


def test_windows_tells_by_its_last_input() -> None:
    """A stand-in for user32 and kernel32, with the fields where the real ones have them."""

    def last_input(reference: Any) -> int:
        reference._obj.time = 2**32 - 4_000
        return 1

    def first(_: Any, reference: Any) -> int:
        entry = reference._obj
        entry.pid, entry.parent, entry.file = 44, 4, "claude.exe"
        return 1

    kernel = SimpleNamespace(
        GetTickCount=lambda: 6_000,
        CreateToolhelp32Snapshot=lambda *_: 7,
        Process32FirstW=first,
        Process32NextW=lambda *_: 0,
        CloseHandle=lambda _: 1,
    )
    kernel.CreateToolhelp32Snapshot = type("Call", (), {"__call__": lambda self, *_: 7})()
    system = SimpleNamespace(user32=SimpleNamespace(GetLastInputInfo=last_input), kernel32=kernel)
    assert Windows(system).idle() == Told(10.0)
    [process] = Windows(system).processes() or []
    assert (process.pid, process.parent, process.is_program("claude")) == (44, 4, True)
    system.user32.GetLastInputInfo = lambda _: 0
    assert Windows(system).idle().seconds is None


@pytest.mark.parametrize(
    ("words", "is_one"),
    [
        (("claude", "--resume"), True),
        (("/usr/bin/claude",), True),
        (("node", "/usr/lib/node_modules/.bin/claude"), True),
        (("node", "--enable-source-maps", "/opt/claude.js"), True),
        (("C:\\Programs\\claude.exe",), True),
        (("vim", "claude"), False),
        (("claude-monitor",), False),
        ((), False),
    ],
)
def test_a_program_is_known_by_its_name(words: tuple[str, ...], is_one: bool) -> None:
    assert Process(1, 0, mine=True, words=words).is_program("claude") == is_one


@LINUX
def test_what_the_owner_runs_is_told_from_what_a_seat_runs(tmp_path: Path) -> None:
    name = f"gq-{os.getpid()}"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", tmp_path / name)
    running = subprocess.Popen([str(tmp_path / name), "60"])
    try:
        found = Linux().processes() or []
        assert own_use(name, found, ours=()) is None  # this process has started it
        theirs = [
            each if each.pid != running.pid else Process(each.pid, 1, each.mine, each.words) for each in found
        ]
        assert own_use(name, theirs, ours=()) == running.pid
        assert own_use(name, theirs, ours=(running.pid,)) is None
        assert own_use(f"{name}x", theirs, ours=()) is None
    finally:
        running.kill()
        running.wait()
