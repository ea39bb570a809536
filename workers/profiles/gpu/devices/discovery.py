"""Find the devices of this machine, and read one of them, whatever its vendor."""

from __future__ import annotations

from workers.profiles.gpu.devices import amd, apple, cpu, nvidia
from workers.profiles.gpu.devices.device import Device, Reading


def find_devices(gpus: bool = True, cpus: bool = True) -> tuple[list[Device], list[str]]:
    """Return every device of this machine, GPUs first, and a sentence for each that was not found."""
    devices: list[Device] = []
    missing: list[str] = []
    if gpus:
        for find in (nvidia.find_devices, amd.find_devices, apple.find_devices):
            found, reasons = find()
            devices += found
            missing += reasons
    if cpus:
        devices.append(cpu.describe())
    return devices, missing


def read_device(backend: str, uuid: str | None) -> Reading:
    """Return a reading of a device, within the time limit of its driver.

    Raises DeviceLost if the device is gone, DriverTimeout if its driver does not answer, and DeviceError if
    the driver does not work. May block: not for heartbeats, which take the sample of a `Sampler`.
    """
    if backend == "cuda":
        return nvidia.read(uuid)
    if backend == "rocm":
        return amd.read(uuid)
    return cpu.read()
