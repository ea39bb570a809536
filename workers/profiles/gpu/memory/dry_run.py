"""Ask llama.cpp what a model would allocate, without allocating it.

A child process loads the model with `no_alloc`, and llama.cpp prints one row for each device: weights,
context and compute buffers. The child is killed then; it holds no weights and serves nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass

from workers.profiles.gpu.devices.processes import measure_resident_mb
from workers.profiles.gpu.model_process import LoadOrder, make_child_environment

DRY_RUN_SECONDS = 30.0
"""The most that a dry run may take. It takes 0.2 to 0.8 s, whatever the size of the model's weights."""

ROW = re.compile(r"common_memory_breakdown_print: \| +- (?P<device>.+?) *\|(?P<numbers>.*)\|")
PARTS = re.compile(r"\d+ = +(\d+) \+ +(\d+) \+ +(\d+)")
"""Weights, context and compute buffers, in MiB, each rounded down."""

REASON = re.compile(r"(?:unknown model architecture|error loading model)[^\n]*", re.IGNORECASE)
HOST_ROWS = ("Host", "CPU")
"""How the names of rows begin that are memory of the machine: `Host`, and such as `CPU_REPACK`."""


@dataclass(frozen=True)
class DryRun:
    """What a model would allocate, in MB.

    `device_mb` on GPUs, `host_mb` in the memory of the machine, and `process_mb`, what its process takes
    without any buffer. `reason` says why there are no numbers.
    """

    device_mb: int = 0
    host_mb: int = 0
    process_mb: int = 0
    reason: str = ""


def dry_run(order: LoadOrder) -> DryRun:
    """Return what the model of `order` would allocate. The engine must have a dry run (`Engine.dry_run`)."""
    process = subprocess.Popen(
        [sys.executable, "-m", "workers.profiles.gpu.engine_process", "--dry-run"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=make_child_environment(order.devices),
        start_new_session=True,
    )
    timer = threading.Timer(DRY_RUN_SECONDS, _kill, (process,))
    timer.start()
    try:
        assert process.stdin is not None
        with contextlib.suppress(OSError), process.stdin:
            process.stdin.write(json.dumps(order.to_message(scratch="")).encode() + b"\n")
        return _read_rows(process)
    finally:
        timer.cancel()
        _kill(process)
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def _read_rows(process: subprocess.Popen[bytes]) -> DryRun:
    """Read the first table of the child's log: it is that of the parameters as they were given."""
    assert process.stderr is not None
    device_mb = host_mb = process_mb = 0
    has_rows = False
    reason = ""
    for line in process.stderr:
        text = line.decode("utf-8", "replace")
        row = ROW.search(text)
        parts = PARTS.search(row["numbers"]) if row else None
        if row and parts:
            size = sum(int(part) + 1 for part in parts.groups())
            if row["device"].startswith(HOST_ROWS):
                host_mb += size
            else:
                device_mb += size
            has_rows = True
            process_mb = max(process_mb, measure_resident_mb(process.pid))
        elif has_rows:
            return DryRun(device_mb, host_mb, process_mb)
        elif found := REASON.search(text):
            reason = reason or found[0].strip()
    return DryRun(reason=reason or "the engine printed no sizes")


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
