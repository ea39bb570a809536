"""What macOS tells of its use: HIDIdleTime of the input system, in nanoseconds, as `ioreg` prints it."""

from __future__ import annotations

import os
import re

from workers.owner.idle import Process, Told
from workers.owner.idle_linux import Ask, ask

IOREG = ("/usr/sbin/ioreg", "-c", "IOHIDSystem", "-d", "4")
PS = ("/bin/ps", "-axo", "pid=,ppid=,uid=,args=")


class MacOS:
    """The machine that this process runs on, or one of a test's making."""

    def __init__(self, ask: Ask = ask) -> None:
        self._ask = ask

    def idle(self) -> Told:
        times = re.findall(r'"HIDIdleTime"\s*=\s*(\d+)', self._ask(IOREG) or "")
        if not times:
            return Told(None, "ioreg tells no HIDIdleTime")
        return Told(min(map(int, times)) / 1e9)

    def processes(self) -> list[Process] | None:
        text = self._ask(PS)
        if text is None:
            return None
        found = []
        for line in text.splitlines():
            match = re.fullmatch(r"\s*(\d+)\s+(\d+)\s+(\d+)\s+(.*\S)\s*", line)
            if match:
                mine = int(match[3]) == os.getuid()
                found.append(Process(int(match[1]), int(match[2]), mine, tuple(match[4].split())))
        return found
