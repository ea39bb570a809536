"""What Linux tells of its use.

A graphical session tells by X11's screen saver extension or GNOME's idle monitor, where this process belongs
to it, else by the hint that it gives logind (`man loginctl`: IdleHint, IdleSinceHint). Consoles and terminals
tell by the time at which their device was last read.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from glob import glob
from pathlib import Path

from workers.owner.idle import Process, Told

PATIENCE = 1.0
"""Seconds that a program may take which is asked."""

SESSIONS = Path("/run/systemd/sessions")
TERMINALS = ("/dev/pts/[0-9]*", "/dev/tty[1-9]*")
DISPLAYS = ("/tmp/.X11-unix/X*", "/run/user/*/wayland-*")  # noqa: S108 where the display servers listen
GRAPHICAL = frozenset({"x11", "wayland", "mir"})
SHOWN = ("Class", "Type", "IdleHint", "IdleSinceHint")
MUTTER = (
    "gdbus", "call", "--session", "--timeout", "1",
    "--dest", "org.gnome.Mutter.IdleMonitor",
    "--object-path", "/org/gnome/Mutter/IdleMonitor/Core",
    "--method", "org.gnome.Mutter.IdleMonitor.GetIdletime",
)  # fmt: skip

Ask = Callable[[Sequence[str]], str | None]
"""What a program prints, None where it is not there, fails or is late."""


def ask(command: Sequence[str]) -> str | None:
    """Run a program and read what it prints, in words of its own making: no shell, no translation."""
    try:
        done = subprocess.run(  # noqa: S603 fixed programs and arguments
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=PATIENCE,
            check=True,
            env={**os.environ, "LC_ALL": "C"},
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", "replace")


class Linux:
    """The machine that this process runs on, or one of a test's making."""

    def __init__(
        self,
        *,
        environ: Mapping[str, str] = os.environ,
        sessions: Path = SESSIONS,
        terminals: Sequence[str] = TERMINALS,
        displays: Sequence[str] = DISPLAYS,
        ask: Ask = ask,
    ) -> None:
        self._environ = environ
        self._sessions = sessions
        self._terminals = terminals
        self._displays = displays
        self._ask = ask

    def idle(self) -> Told:
        now = time.time()
        sessions = self._logind()
        screens = [each for each in sessions or () if each.get("Type") in GRAPHICAL]
        display, wayland = self._environ.get("DISPLAY"), self._environ.get("WAYLAND_DISPLAY")
        told: list[float | None] = []
        if display or wayland or screens or any(glob(pattern) for pattern in self._displays):
            seen = self._mutter() if wayland else self._x11() if display else None
            told.append(seen if seen is not None else _hinted(screens, now))
            if told == [None]:
                return Told(None, "the graphical session tells neither X11, GNOME nor logind of its use")
        told.append(self._terminal(now))
        known = [seconds for seconds in told if seconds is not None]
        if known:
            return Told(max(min(known), 0.0))
        if sessions is not None and not sessions:  # logind watches, and nobody is logged in
            return Told(_uptime())
        return Told(
            None, "there is no terminal, no graphical session and no logind that would tell of its use"
        )

    def processes(self) -> list[Process] | None:
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                stat = (entry / "stat").read_text("utf-8", "replace")
                words = (entry / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
                mine = entry.stat().st_uid == os.getuid()
            except OSError:  # it has ended
                continue
            name, _, rest = stat.partition("(")[2].rpartition(")")
            if words[0]:
                found.append(Process(int(entry.name), int(rest.split()[1]), mine, tuple(words)))
            elif rest.split()[0] != "Z":
                found.append(Process(int(entry.name), int(rest.split()[1]), mine, (name,)))
        return found

    def _logind(self) -> list[dict[str, str]] | None:
        """The sessions of people, as logind shows them; None where no logind answers."""
        if not self._sessions.is_dir():
            return None
        ids = sorted(path.name for path in self._sessions.iterdir() if not path.name.endswith(".ref"))
        if not ids:
            return [] if self._ask(("loginctl", "list-sessions", "--no-legend")) is not None else None
        text = self._ask(("loginctl", "show-session", *ids, *(f"--property={name}" for name in SHOWN)))
        return None if text is None else [each for each in _blocks(text) if each.get("Class") == "user"]

    def _mutter(self) -> float | None:
        match = re.fullmatch(r"\(uint64 (\d+),\)", (self._ask(MUTTER) or "").strip())
        return int(match[1]) / 1000 if match else None

    def _x11(self) -> float | None:
        # In a process of its own: the X library ends its program where the display goes.
        script = Path(__file__).with_name("idle_x11.py")
        text = (self._ask((sys.executable, "-I", "-S", str(script))) or "").strip()
        return int(text) / 1000 if text.isdecimal() else None

    def _terminal(self, now: float) -> float | None:
        """Since when no terminal was read from: what is typed is read."""
        times = []
        for pattern in self._terminals:
            for path in glob(pattern):
                try:
                    times.append(os.stat(path).st_atime)
                except OSError:
                    continue
        return now - max(times) if times else None


def _hinted(screens: Sequence[Mapping[str, str]], now: float) -> float | None:
    """For how long all graphical sessions have called themselves idle; 0 where one does not."""
    if not screens or not all(each.get("IdleHint") in ("yes", "no") for each in screens):
        return None
    if any(each["IdleHint"] == "no" for each in screens):
        return 0.0
    since = [int(each.get("IdleSinceHint") or 0) / 1e6 for each in screens]
    return now - max(since) if all(since) else None


def _blocks(text: str) -> list[dict[str, str]]:
    """`loginctl show-session` of several sessions: lines NAME=VALUE, an empty line between two."""
    return [
        dict(line.partition("=")[::2] for line in block.splitlines())
        for block in re.split(r"\n\s*\n", text.strip())
    ]


def _uptime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)
