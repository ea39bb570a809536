"""AMD's GPUs by `amdsmi`, where it and ROCm's library are installed."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from workers.profiles.gpu.devices import processes
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
LIBRARY = "libamd_smi.so"
PCI_VENDOR = "0x1002"
MAX_PROCESSES = 64

DRIVER = DriverThread("AMD")


class _Open:
    """amdsmi as it is initialised in this process, which DRIVER's thread alone uses."""

    smi: Any = None


def find_devices(seconds: float = SECONDS) -> tuple[list[Device], list[str]]:
    """Return the AMD devices. Without an AMD GPU there is no sentence, as most machines have none."""
    if not _has_amd_gpu() and not _is_library_installed():
        return [], []
    try:
        return DRIVER.call(_find_devices, seconds)
    except DriverTimeout as exc:
        return [], [str(exc)]
    except DeviceError as exc:
        return [], [f"No AMD GPU: {exc}"]


def read(uuid: str | None, seconds: float = SECONDS) -> Reading:
    """Return a reading of the device `uuid`, of the first one if it is None.

    Raises DeviceLost, DriverTimeout and DeviceError as for NVIDIA.
    """
    return DRIVER.call(lambda: _read(uuid), seconds)


def _has_amd_gpu(cards: Path = Path("/sys/class/drm")) -> bool:
    """Return whether the kernel lists a GPU of AMD's."""
    for vendor in cards.glob("card*/device/vendor"):
        try:
            if vendor.read_text("ascii").strip() == PCI_VENDOR:
                return True
        except OSError:
            continue
    return False


def _is_library_installed() -> bool:
    """Return whether ROCm's library can be loaded. `amdsmi` prints to stdout if it cannot."""
    root = os.environ.get("ROCM_HOME") or os.environ.get("ROCM_PATH") or "/opt/rocm"
    for name in (f"{root}/lib/{LIBRARY}", LIBRARY):
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        return True
    return False


def _open() -> Any:
    """Return amdsmi, initialised. Raises DeviceError."""
    if _Open.smi is None:
        if not _is_library_installed():
            raise DeviceError(f"ROCm's {LIBRARY} is not installed")
        try:
            import amdsmi
        except ImportError:
            raise DeviceError("the package amdsmi is not installed; run: pip install amdsmi") from None
        except (AttributeError, KeyError) as exc:  # it looks up every function of its own version
            raise DeviceError(f"the package amdsmi does not fit the installed ROCm: {exc}") from None
        try:
            amdsmi.amdsmi_init()
        except amdsmi.AmdSmiException as exc:
            raise DeviceError(_explain(exc)) from None
        _Open.smi = amdsmi
    return _Open.smi


def _explain(exc: Any) -> str:
    return str(getattr(exc, "err_info", "") or exc)


def _find_devices() -> tuple[list[Device], list[str]]:
    smi = _open()
    devices: list[Device] = []
    missing: list[str] = []
    for index, (uuid, handle) in enumerate(_list_handles(smi)):
        name = f"amd{index}"
        unknown: dict[str, str] = {}
        try:
            usage = smi.amdsmi_get_gpu_vram_usage(handle)
        except smi.AmdSmiException as exc:
            missing.append(f"AMD GPU {index} does not answer: {_explain(exc)}")
            continue
        asic = _ask(smi, "name", partial(smi.amdsmi_get_gpu_asic_info, handle), unknown) or {}
        title = asic.get("market_name")
        devices.append(
            Device(
                device=name,
                name=title if title and title != "N/A" else "AMD GPU",
                vendor="amd",
                backend="rocm",
                memory_mb=usage["vram_total"],
                free_mb=max(0, usage["vram_total"] - usage["vram_used"]),
                uuid=uuid,
                unknown=unknown,
            )
        )
    if not devices and not missing:
        missing.append("No AMD GPU: the driver reports none")
    return devices, missing


def _list_handles(smi: Any) -> list[tuple[str, Any]]:
    """Return each GPU's UUID, as ROCR_VISIBLE_DEVICES takes it, and its handle. Raises DeviceError."""
    try:
        handles = smi.amdsmi_get_processor_handles()
        return [(smi.amdsmi_get_gpu_enumeration_info(each)["hip_uuid"], each) for each in handles]
    except smi.AmdSmiException as exc:
        raise DeviceError(_explain(exc)) from None


def _ask(smi: Any, name: str, function: Callable[[], Any], unknown: dict[str, str]) -> Any:
    """Return what `function` returns; None, and why in `unknown`, if the driver does not tell it."""
    try:
        value = function()
    except (smi.AmdSmiException, AttributeError, KeyError) as exc:
        unknown[name] = _explain(exc)
        return None
    if value == "N/A":
        unknown[name] = "not supported"
        return None
    return value


def _read(uuid: str | None) -> Reading:
    smi = _open()
    handles = _list_handles(smi)
    handle = next((handle for name, handle in handles if uuid in {None, name}), None)
    if handle is None:
        raise DeviceLost("the GPU is not there: the AMD driver does not list it any more")
    try:
        usage = smi.amdsmi_get_gpu_vram_usage(handle)
    except smi.AmdSmiException as exc:
        raise DeviceError(f"the AMD driver does not work: {_explain(exc)}") from None
    unknown: dict[str, str] = {}
    busy = _ask(smi, "utilisation", lambda: smi.amdsmi_get_gpu_activity(handle)["gfx_activity"], unknown)
    temperature = _ask(smi, "temperature", lambda: _read_temperature(smi, handle), unknown)
    power = _ask(smi, "power", lambda: _read_power(smi, handle), unknown)
    energy = _ask(smi, "energy", lambda: _read_energy(smi, handle), unknown)
    return Reading(
        memory_mb=usage["vram_total"],
        free_mb=max(0, usage["vram_total"] - usage["vram_used"]),
        processes=_ask(smi, "processes", lambda: _read_processes(smi, handle), unknown),
        utilisation=None if busy is None else busy / 100,
        temperature=temperature,
        power_watts=power,
        energy_joules=energy,
        unknown=unknown,
    )


def _read_temperature(smi: Any, handle: Any) -> float:
    """Return the temperature of the hottest spot in degrees Celsius."""
    kinds, now = smi.AmdSmiTemperatureType, smi.AmdSmiTemperatureMetric.CURRENT
    return float(smi.amdsmi_get_temp_metric(handle, kinds.HOTSPOT, now))


def _read_power(smi: Any, handle: Any) -> Any:
    """Return the power in watts: the momentary one, else the average, as cards tell only one of them."""
    info = smi.amdsmi_get_power_info(handle)
    known = (info.get(name) for name in ("current_socket_power", "average_socket_power"))
    return next((float(value) for value in known if isinstance(value, int) and value), "N/A")


def _read_energy(smi: Any, handle: Any) -> float:
    """Return the energy counter in joules. Its steps are of `counter_resolution` microjoules."""
    count = smi.amdsmi_get_energy_count(handle)
    return float(count["energy_accumulator"] * count["counter_resolution"] / 1e6)


def _read_processes(smi: Any, handle: Any) -> tuple[DeviceProcess, ...]:
    found = smi.amdsmi_get_gpu_process_list(handle)
    return tuple(
        processes.describe(each["pid"], each["memory_usage"]["vram_mem"] // MB)
        for each in found[:MAX_PROCESSES]
    )
