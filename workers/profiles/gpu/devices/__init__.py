"""The devices of this machine: NVIDIA, AMD and Apple GPUs, and the CPU.

In: the vendors' libraries, /proc, sysctl.
Out: devices, readings of their memory and health, and the reason for each that is missing.
Imported by: memory, model_loader, model_process, probe, profile, python_stages, seat_report.
"""

__all__ = ["cpu", "device", "discovery", "processes", "sampler"]
