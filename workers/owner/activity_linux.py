"""Activity on Linux.

Graphical sessions: X11's screen saver extension or GNOME's idle monitor where this process can reach the
session, else the hint that the session gives logind (`man loginctl`: IdleHint, IdleSinceHint). Consoles and
terminals: the time at which their device was last read. Processes: `/proc`.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from glob import glob
from pathlib import Path

from workers.owner.activity_source import IdleTime, Process, RunProgram, run_program

SESSIONS = Path("/run/systemd/sessions")
TERMINALS = ("/dev/pts/[0-9]*", "/dev/tty[1-9]*")
DISPLAYS = ("/tmp/.X11-unix/X*", "/run/user/*/wayland-*")  # noqa: S108 where the display servers listen
GRAPHICAL = frozenset({"x11", "wayland", "mir"})
SESSION_PROPERTIES = ("Class", "Type", "IdleHint", "IdleSinceHint")
MUTTER = (
    "gdbus", "call", "--session", "--timeout", "1",
    "--dest", "org.gnome.Mutter.IdleMonitor",
    "--object-path", "/org/gnome/Mutter/IdleMonitor/Core",
    "--method", "org.gnome.Mutter.IdleMonitor.GetIdletime",
)  # fmt: skip


class LinuxActivity:
    """The activity of this machine. The arguments are the places where it is read, which tests replace."""

    def __init__(
        self,
        *,
        environ: Mapping[str, str] = os.environ,
        sessions: Path = SESSIONS,
        terminals: Sequence[str] = TERMINALS,
        displays: Sequence[str] = DISPLAYS,
        run: RunProgram = run_program,
    ) -> None:
        self._environ = environ
        self._sessions = sessions
        self._terminals = terminals
        self._displays = displays
        self._run = run

    def read_idle_time(self) -> IdleTime:
        now = time.time()
        sessions = self._read_sessions()
        screens = [session for session in sessions or () if session.get("Type") in GRAPHICAL]
        display, wayland = self._environ.get("DISPLAY"), self._environ.get("WAYLAND_DISPLAY")
        times: list[float] = []
        if display or wayland or screens or any(glob(pattern) for pattern in self._displays):
            seconds = self._read_mutter() if wayland else self._read_x11() if display else None
            if seconds is None:
                seconds = _hinted_idle_time(screens, now)
            if seconds is None:
                reason = "the graphical session reports its idle time neither to X11, GNOME nor logind"
                return IdleTime(None, reason)
            times.append(seconds)
        if (seconds := self._read_terminals(now)) is not None:
            times.append(seconds)
        if times:
            return IdleTime(max(min(times), 0.0))
        if sessions is not None and not sessions:  # logind runs, and nobody is logged in
            return IdleTime(time.clock_gettime(time.CLOCK_BOOTTIME))
        return IdleTime(None, "there is no terminal, no graphical session and no logind")

    def list_processes(self) -> list[Process] | None:
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                stat = (entry / "stat").read_text("utf-8", "replace")
                words = (entry / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
                mine = entry.stat().st_uid == os.getuid()
            except OSError:  # it has ended
                continue
            name, _, rest = stat.partition("(")[2].rpartition(")")
            state, parent, *_ = rest.split()
            if words[0]:
                found.append(Process(int(entry.name), int(parent), mine, tuple(words)))
            elif state != "Z":
                found.append(Process(int(entry.name), int(parent), mine, (name,)))
        return found

    def _read_sessions(self) -> list[dict[str, str]] | None:
        """Return the sessions of people, as logind shows them; None where logind does not answer."""
        if not self._sessions.is_dir():
            return None
        ids = sorted(path.name for path in self._sessions.iterdir() if not path.name.endswith(".ref"))
        if not ids:
            return [] if self._run(("loginctl", "list-sessions", "--no-legend")) is not None else None
        properties = (f"--property={name}" for name in SESSION_PROPERTIES)
        text = self._run(("loginctl", "show-session", *ids, *properties))
        if text is None:
            return None
        return [session for session in _parse_sessions(text) if session.get("Class") == "user"]

    def _read_mutter(self) -> float | None:
        match = re.fullmatch(r"\(uint64 (\d+),\)", (self._run(MUTTER) or "").strip())
        return int(match[1]) / 1000 if match else None

    def _read_x11(self) -> float | None:
        # In a separate process: the X library ends its program when the display goes away.
        script = Path(__file__).with_name("activity_x11.py")
        text = (self._run((sys.executable, "-I", "-S", str(script))) or "").strip()
        return int(text) / 1000 if text.isdecimal() else None

    def _read_terminals(self, now: float) -> float | None:
        """Return the time since any terminal was read from: typing is read."""
        times = []
        for pattern in self._terminals:
            for path in glob(pattern):
                try:
                    times.append(os.stat(path).st_atime)
                except OSError:
                    continue
        return now - max(times) if times else None


def _hinted_idle_time(screens: Sequence[Mapping[str, str]], now: float) -> float | None:
    """Return the time since when all graphical sessions call themselves idle: 0 where one does not, None
    without hints.
    """
    if not screens or not all(screen.get("IdleHint") in ("yes", "no") for screen in screens):
        return None
    if any(screen["IdleHint"] == "no" for screen in screens):
        return 0.0
    since = [int(screen.get("IdleSinceHint") or 0) / 1e6 for screen in screens]
    return now - max(since) if all(since) else None


def _parse_sessions(text: str) -> list[dict[str, str]]:
    """Parse what `loginctl show-session` prints: lines NAME=VALUE, an empty line between two sessions."""
    return [
        dict(line.partition("=")[::2] for line in block.splitlines())
        for block in re.split(r"\n\s*\n", text.strip())
    ]
