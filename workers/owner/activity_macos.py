"""Activity on macOS: `ioreg` prints HIDIdleTime in nanoseconds, `ps` lists the processes."""

from __future__ import annotations

import os
import re

from workers.owner.activity_source import IdleTime, Process, RunProgram, run_program

IOREG = ("/usr/sbin/ioreg", "-c", "IOHIDSystem", "-d", "4")
PS = ("/bin/ps", "-axo", "pid=,ppid=,uid=,args=")


class MacOSActivity:
    """The activity of this machine. Tests replace `run`."""

    def __init__(self, run: RunProgram = run_program) -> None:
        self._run = run

    def read_idle_time(self) -> IdleTime:
        times = re.findall(r'"HIDIdleTime"\s*=\s*(\d+)', self._run(IOREG) or "")
        if not times:
            return IdleTime(None, "ioreg reports no HIDIdleTime")
        return IdleTime(min(map(int, times)) / 1e9)

    def list_processes(self) -> list[Process] | None:
        text = self._run(PS)
        if text is None:
            return None
        found = []
        for line in text.splitlines():
            match = re.fullmatch(r"\s*(\d+)\s+(\d+)\s+(\d+)\s+(.*\S)\s*", line)
            if match:
                mine = int(match[3]) == os.getuid()
                found.append(Process(int(match[1]), int(match[2]), mine, tuple(match[4].split())))
        return found
