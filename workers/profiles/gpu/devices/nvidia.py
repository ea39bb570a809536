"""NVIDIA's GPUs by NVML: whole cards, and the instances of cards in MIG mode.

All calls run on one thread (`DriverThread`). NVML stays open from the first call on, as opening it anew wakes
a card that sleeps; it is opened again after an error that says that it, or a card, is gone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, ClassVar

from workers.profiles.gpu.capability import ComputeCapability
from workers.profiles.gpu.devices import cpu, processes
from workers.profiles.gpu.devices.device import (
    MB,
    Device,
    DeviceError,
    DeviceLost,
    DeviceProcess,
    DriverTimeout,
    Reading,
)
from workers.profiles.gpu.devices.driver_thread import DriverThread

SECONDS = 1.2
"""A driver that does not answer in this time is reported as missing. A probe has two seconds."""

MAX_PROCESSES = 64

DRIVER = DriverThread("NVIDIA")


class _Open:
    """NVML as it is open in this process, which DRIVER's thread alone uses."""

    nvml: Any = None  # pynvml; None while it is closed
    events: ClassVar[dict[str, Any]] = {}  # UUID → the events that NVML keeps of that card, or why none
    xids: ClassVar[dict[str, int]] = {}  # UUID → the last Xid


def find_devices(seconds: float = SECONDS) -> tuple[list[Device], list[str]]:
    """Return the NVIDIA devices, and a sentence for each that is missing or does not answer."""
    try:
        return DRIVER.call(_find_devices, seconds)
    except DriverTimeout as exc:
        return [], [str(exc)]
    except DeviceError as exc:
        return [], [f"No NVIDIA GPU: {exc}"]


def read(uuid: str | None, seconds: float = SECONDS) -> Reading:
    """Return a reading of the device `uuid`, of the first one if it is None.

    Raises DeviceLost if the device is gone, DriverTimeout, and DeviceError if the driver does not work.
    """
    return DRIVER.call(lambda: _read(uuid), seconds)


def _open() -> Any:
    """Return pynvml with NVML open. Raises DeviceError."""
    if _Open.nvml is None:
        try:
            import pynvml
        except ImportError:
            raise DeviceError("nvidia-ml-py is not installed; run: pip install nvidia-ml-py") from None
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as exc:
            raise DeviceError(_explain(exc)) from None
        _Open.nvml = pynvml
    return _Open.nvml


def _close() -> None:
    """Let the next call open NVML anew, which then counts the cards again."""
    nvml, _Open.nvml = _Open.nvml, None
    _Open.events.clear()
    if nvml is not None:
        with contextlib.suppress(nvml.NVMLError):  # there is nothing left to close
            nvml.nvmlShutdown()


def _explain(exc: Exception) -> str:
    """Return what an error of NVML means, with what to do where that is known."""
    import pynvml

    hints = {
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "the driver was updated while it was loaded: restart the "
        "machine",
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: "the driver is too old for nvidia-ml-py",
        pynvml.NVML_ERROR_NO_PERMISSION: "give the worker's user access to /dev/nvidia*",
        pynvml.NVML_ERROR_RESET_REQUIRED: "reset it with nvidia-smi --gpu-reset, or restart the machine",
        pynvml.NVML_ERROR_GPU_IS_LOST: "it has fallen off the bus or was removed: check its slot and "
        "its power, then restart the machine",
    }
    hint = hints.get(getattr(exc, "value", 0))
    return f"{exc} ({hint})" if hint else str(exc)


def _is_gone(nvml: Any, exc: Any) -> bool:
    """Return whether an error says that the device will not answer again by itself."""
    return exc.value in {
        nvml.NVML_ERROR_GPU_IS_LOST,
        nvml.NVML_ERROR_RESET_REQUIRED,
        nvml.NVML_ERROR_GPU_NOT_FOUND,
        nvml.NVML_ERROR_NOT_FOUND,
    }


def _is_closed(nvml: Any, exc: Any) -> bool:
    """Return whether an error says that the driver is gone, with all of its devices."""
    return exc.value in {
        nvml.NVML_ERROR_UNINITIALIZED,
        nvml.NVML_ERROR_DRIVER_NOT_LOADED,
        nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    }


# -- finding


def _find_devices() -> tuple[list[Device], list[str]]:
    _close()  # a card that was added since then counts as well
    nvml = _open()
    devices: list[Device] = []
    missing: list[str] = []
    try:
        count = nvml.nvmlDeviceGetCount()
    except nvml.NVMLError as exc:
        raise DeviceError(_explain(exc)) from None
    for index in range(count):
        name = f"gpu{index}"
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            if _is_split(nvml, handle):
                instances = list(_find_instances(nvml, handle, name, missing))
                devices += instances
                if not instances:
                    missing.append(
                        f"{name} is in MIG mode and has no instance; make one: nvidia-smi mig -cgi 0 -C"
                    )
            else:
                devices.append(_describe(nvml, handle, name, parent=None))
        except nvml.NVMLError as exc:
            missing.append(f"NVIDIA GPU {index} does not answer: {_explain(exc)}")
    if not devices and not missing:
        missing.append("No NVIDIA GPU: the driver reports none")
    return devices, missing


def _is_split(nvml: Any, handle: Any) -> bool:
    """Return whether a card is in MIG mode, in which only its instances take work."""
    try:
        return bool(nvml.nvmlDeviceGetMigMode(handle)[0] == nvml.NVML_DEVICE_MIG_ENABLE)
    except nvml.NVMLError as exc:
        if _is_gone(nvml, exc):
            raise
        return False  # a card, or a driver, without MIG


def _find_instances(nvml: Any, parent: Any, name: str, missing: list[str]) -> Iterator[Device]:
    """Yield the MIG instances of a card as devices: `gpu0-mig1`. Slots without an instance are skipped."""
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(parent)):
        try:
            handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, index)
        except nvml.NVMLError as exc:
            if exc.value != nvml.NVML_ERROR_NOT_FOUND:
                missing.append(f"{name}-mig{index} does not answer: {_explain(exc)}")
            continue
        yield _describe(nvml, handle, f"{name}-mig{index}", parent=parent)


def _describe(nvml: Any, handle: Any, name: str, *, parent: Any) -> Device:
    """Return a card or an instance. Raises NVMLError if it has no UUID, by which engines choose it."""
    uuid = nvml.nvmlDeviceGetUUID(handle)
    fields = _Fields(nvml)
    memory = fields.ask("memory", lambda: _read_memory(nvml, handle)) or (0, 0, 0)
    total, free, _ = memory
    if total == 0:  # an integrated GPU shares the memory of the machine
        total, free = cpu.measure_total_mb(), cpu.measure_available_mb()
    compute_cap: ComputeCapability | None = fields.ask(
        "compute_cap", lambda: nvml.nvmlDeviceGetCudaComputeCapability(parent or handle)
    )
    return Device(
        device=name,
        name=fields.ask("name", lambda: nvml.nvmlDeviceGetName(handle)) or "NVIDIA GPU",
        vendor="nvidia",
        backend="cuda",
        memory_mb=total,
        free_mb=free,
        compute_cap=compute_cap,
        uuid=uuid,
        unknown=fields.unknown,
    )


# -- reading


class _Fields:
    """Asks for one field after the other: what a driver does not tell costs that field alone."""

    def __init__(self, nvml: Any) -> None:
        self.unknown: dict[str, str] = {}
        self._nvml = nvml

    def ask(self, name: str, function: Callable[[], Any]) -> Any:
        """Return what `function` returns, None if the driver does not tell it. Raises the NVMLError of a
        device that is gone.
        """
        try:
            return function()
        except self._nvml.NVMLError as exc:
            if exc.value != self._nvml.NVML_ERROR_NOT_FOUND and (
                _is_gone(self._nvml, exc) or _is_closed(self._nvml, exc)
            ):
                raise
            self.unknown[name] = str(exc)
            return None


def _read(uuid: str | None) -> Reading:
    nvml = _open()
    try:
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid.encode()) if uuid else nvml.nvmlDeviceGetHandleByIndex(0)
        return _read_handle(nvml, handle, uuid or "")
    except nvml.NVMLError as exc:
        if _is_gone(nvml, exc):
            _close()
            raise DeviceLost(f"the GPU is not there: {_explain(exc)}") from None
        if _is_closed(nvml, exc):
            _close()
        raise DeviceError(f"the NVIDIA driver does not work: {_explain(exc)}") from None


def _read_handle(nvml: Any, handle: Any, uuid: str) -> Reading:
    fields = _Fields(nvml)
    is_instance = uuid.startswith("MIG-")
    total, free, reserved = fields.ask("memory", lambda: _read_memory(nvml, handle)) or (0, 0, 0)
    if total == 0:
        total, free, reserved = cpu.measure_total_mb(), cpu.measure_available_mb(), 0
    used_by = fields.ask("processes", lambda: _read_processes(nvml, handle))
    busy = fields.ask("utilisation", lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    reading = Reading(total, free, reserved, used_by, utilisation=None if busy is None else busy / 100)
    if is_instance:
        shared = "the instances of a card share it"
        return replace(reading, unknown=fields.unknown | dict.fromkeys(("power", "energy"), shared))
    temperature = fields.ask(
        "temperature", lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
    )
    power = fields.ask("power", lambda: nvml.nvmlDeviceGetPowerUsage(handle))
    energy = fields.ask("energy", lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle))
    return replace(
        reading,
        temperature=None if temperature is None else float(temperature),
        power_watts=None if power is None else power / 1000,
        energy_joules=None if energy is None else energy / 1000,
        faults=tuple(_read_faults(nvml, handle, uuid, fields)),
        unknown=fields.unknown,
    )


def _read_memory(nvml: Any, handle: Any) -> tuple[int, int, int]:
    """Return the memory in MB: all, free, and the driver's own. Older drivers count that as used."""
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2)
        reserved = memory.reserved
    except nvml.NVMLError as exc:
        if _is_gone(nvml, exc) or _is_closed(nvml, exc):
            raise
        memory, reserved = nvml.nvmlDeviceGetMemoryInfo(handle), 0
    return memory.total // MB, memory.free // MB, reserved // MB


def _read_processes(nvml: Any, handle: Any) -> tuple[DeviceProcess, ...]:
    """Return the processes that compute on a device. Older drivers have the call's second version."""
    try:
        found = nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle)
    except nvml.NVMLError as exc:
        if exc.value != nvml.NVML_ERROR_FUNCTION_NOT_FOUND:
            raise
        found = nvml.nvmlDeviceGetComputeRunningProcesses_v2(handle)
    return tuple(
        processes.describe(each.pid, None if each.usedGpuMemory is None else each.usedGpuMemory // MB)
        for each in found[:MAX_PROCESSES]
    )


def _read_faults(nvml: Any, handle: Any, uuid: str, fields: _Fields) -> Iterator[str]:
    """Yield what is wrong with a card's hardware. Absent error correction is no fault."""
    errors = fields.ask(
        "ecc",
        lambda: nvml.nvmlDeviceGetTotalEccErrors(
            handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
        ),
    )
    if errors:
        yield f"{errors} memory errors that could not be corrected since the driver was loaded"
    if fields.ask("retired_pages", lambda: nvml.nvmlDeviceGetRetiredPagesPendingStatus(handle)):
        yield "faulty memory pages are retired at the next restart"
    remapped = fields.ask("remapped_rows", lambda: nvml.nvmlDeviceGetRemappedRows(handle))
    if remapped and remapped[3]:
        yield "a faulty memory row could not be replaced: the card needs service"
    elif remapped and remapped[2]:
        yield "a faulty memory row is replaced at the next reset"
    xid = fields.ask("xid", lambda: _read_xid(nvml, handle, uuid))
    if xid:
        yield f"Xid {xid}, see NVIDIA's list of Xid errors"


def _read_xid(nvml: Any, handle: Any, uuid: str) -> int:
    """Return the last Xid error of a card since the worker started, 0 if there was none. Does not wait."""
    events = _Open.events.get(uuid)
    if events is None:
        try:
            events = nvml.nvmlEventSetCreate()
            nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
        except nvml.NVMLError as exc:
            events = exc  # asked once: a set that is not freed would be left behind each time
        _Open.events[uuid] = events
    if isinstance(events, nvml.NVMLError):
        raise events
    while True:
        try:
            event = nvml.nvmlEventSetWait(events, 0)
        except nvml.NVMLError as exc:
            if exc.value != nvml.NVML_ERROR_TIMEOUT:
                raise
            break
        if event.eventType == nvml.nvmlEventTypeXidCriticalError:
            _Open.xids[uuid] = event.eventData
    return _Open.xids.get(uuid, 0)
