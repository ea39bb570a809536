"""The memory of devices that an engine holds which its seat's worker started, in the devices' books."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence

from gridq.errors import SeatUnavailable
from workers.profiles.gpu.capability import HEADROOM_MB
from workers.profiles.gpu.devices import discovery
from workers.profiles.gpu.devices.device import CARD_BACKENDS, Device, DeviceError
from workers.profiles.gpu.devices.processes import measure_tree_mb, sum_tree_mb
from workers.profiles.gpu.memory.device_book import DeviceBook, Refusal, Reservation

MEASURE_SECONDS = 5.0
"""Time between two measurements of a running engine."""


class EngineMemory:
    """The reservations of one engine. `memory_mb` is what it is declared to take of each of its `devices`
    (names or UUIDs; None: the first GPU, or the CPU), None if nothing is declared: then the books know it as
    soon as it is measured.
    """

    def __init__(self, engine: str, devices: Sequence[str] | None, memory_mb: int | None) -> None:
        self._engine, self._names, self._memory_mb = engine, devices, memory_mb
        self._holder = f"{os.getpid()}:{engine}"
        self._devices: list[Device] = []
        self._held: dict[str, Reservation] = {}
        self._measured_at = 0.0
        self._settled_pid: int | None = None
        self._lock = threading.Lock()

    def reserve(self) -> str:
        """Reserve what the engine is declared to take. Return why that is not possible now, "" if it is done.

        Raises ValueError for a device that this machine does not have, and SeatUnavailable if a book cannot
        be written.
        """
        self.release()
        self._devices = find_devices(self._names)
        if self._memory_mb is None:
            return ""
        with self._lock:
            for device in self._devices:
                try:
                    found = self._reserve_on(device, self._memory_mb)
                except SeatUnavailable:
                    self._release()
                    raise
                if isinstance(found, Refusal):
                    self._release()
                    return (
                        f"it needs {found.need_mb} MB, and {device.device} has {found.free_mb} MB free of "
                        f"{found.total_mb}"
                    )
                self._held[_get_key(device)] = found
        return ""

    def _reserve_on(self, device: Device, mb: int) -> Reservation | Refusal:
        headroom = 0 if device.backend == "cpu" else HEADROOM_MB
        return DeviceBook(_get_key(device)).reserve(
            mb,
            total_mb=device.compute_usable_mb(headroom),
            free_mb=max(0, device.free_mb - headroom),
            holder=self._holder,
            model=self._engine,
            measure=lambda pid: measure_on(device, pid),
        )

    def assign(self, pid: int) -> None:
        """State the process that was started: while it is there it may take the memory, even if its worker
        is killed.
        """
        with self._lock:
            for each in self._held.values():
                each.assign(pid)

    def settle(self, pid: int | None) -> None:
        """State in the books what the engine, the process tree of `pid`, takes now; at most every
        MEASURE_SECONDS. What it is declared to take is the least.
        """
        if pid is None or time.monotonic() - self._measured_at < MEASURE_SECONDS:
            return
        self._measured_at = time.monotonic()
        for device in self._devices:
            taken = measure_on(device, pid)
            key = _get_key(device)
            with self._lock:
                held, mb = self._held.get(key), max(taken, self._memory_mb or 0)
                if held is None and taken:
                    held = DeviceBook(key).note(taken, holder=self._holder, model=self._engine)
                    if held is not None:
                        self._held[key] = held
                if held is not None and (held.mb != mb or self._settled_pid != pid):
                    held.settle(mb, pid)
        self._settled_pid = pid

    def release(self) -> None:
        """Give everything back, once the engine has ended."""
        with self._lock:
            self._release()

    def _release(self) -> None:
        for each in self._held.values():
            each.release()
        self._held.clear()
        self._measured_at, self._settled_pid = 0.0, None


def measure_on(device: Device, pid: int) -> int:
    """Return how much of a device a process and its descendants hold, in MB; 0 if that is not known."""
    if device.backend not in CARD_BACKENDS:
        return measure_tree_mb(pid)
    try:
        return sum_tree_mb(discovery.read_device(device.backend, device.uuid), pid)
    except DeviceError:
        return 0


def find_devices(names: Sequence[str] | None) -> list[Device]:
    """Return the devices by their names or UUIDs; None: the first GPU, or the CPU if there is none.

    Raises ValueError for one that this machine does not have.
    """
    found, _ = discovery.find_devices()
    if names is None:
        return found[:1]
    known = {key: device for device in found for key in (device.device, device.uuid) if key}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"this machine has no device {unknown[0]!r}: it has {', '.join(known) or 'none'}")
    return [known[name] for name in names]


def _get_key(device: Device) -> str:
    return device.uuid or device.device
