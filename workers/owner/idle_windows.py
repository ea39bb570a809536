"""What Windows tells of its use: GetLastInputInfo in milliseconds since the start, and the Toolhelp snapshot
of its processes.
"""

from __future__ import annotations

import ctypes
from typing import Any

from workers.owner.idle import Process, Told

SNAP_PROCESSES = 0x2
WRAP = 2**32
"""Both clocks have 32 bits: they begin anew after 49.7 days."""


class _LastInput(ctypes.Structure):
    _fields_ = (("size", ctypes.c_uint32), ("time", ctypes.c_uint32))


class _Entry(ctypes.Structure):
    """PROCESSENTRY32W."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("usage", ctypes.c_uint32),
        ("pid", ctypes.c_uint32),
        ("heap", ctypes.c_void_p),
        ("module", ctypes.c_uint32),
        ("threads", ctypes.c_uint32),
        ("parent", ctypes.c_uint32),
        ("priority", ctypes.c_int32),
        ("flags", ctypes.c_uint32),
        ("file", ctypes.c_wchar * 260),
    )


class Windows:
    """The machine that this process runs on, or a test's `system` with its user32 and kernel32."""

    def __init__(self, system: Any = None) -> None:
        self._system: Any = system if system is not None else getattr(ctypes, "windll", None)

    def idle(self) -> Told:
        last = _LastInput(size=ctypes.sizeof(_LastInput))
        if not self._system.user32.GetLastInputInfo(ctypes.byref(last)):
            return Told(None, "GetLastInputInfo failed: the process has no desktop")
        return Told((self._system.kernel32.GetTickCount() - last.time) % WRAP / 1000)

    def processes(self) -> list[Process] | None:
        kernel = self._system.kernel32
        kernel.CreateToolhelp32Snapshot.restype = ctypes.c_void_p
        snapshot = ctypes.c_void_p(kernel.CreateToolhelp32Snapshot(SNAP_PROCESSES, 0))
        if snapshot.value in (None, ctypes.c_void_p(-1).value):
            return None
        found = []
        try:
            entry = _Entry(size=ctypes.sizeof(_Entry))
            more = kernel.Process32FirstW(snapshot, ctypes.byref(entry))
            while more:
                # Whose it is the snapshot does not say: on a machine of one person it is the owner's.
                found.append(Process(entry.pid, entry.parent, mine=True, words=(entry.file,)))
                more = kernel.Process32NextW(snapshot, ctypes.byref(entry))
        finally:
            kernel.CloseHandle(snapshot)
        return found
