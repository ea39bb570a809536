"""Compare gridq with a real NVIDIA GPU, step by step: `benchmarks/on_gpu.sh` runs it.

A step that cannot run says why, and the others go on. Each compared figure has a bar; the exit code is 1 if
one is missed. Without a card, every step that needs one is skipped, and the code is 0. With `--rehearse`, the
CPU stands for the card in the steps that load a model.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.gpu import MAX_ADDED_MS, MIN_RATE_SHARE, Answer, make_model, measure_paces, run_grid
from gridq.profiles.profile import StageContext
from workers.model_apis.model_catalogue import Model, load_catalogue
from workers.profiles.gpu.capability import GpuSeat
from workers.profiles.gpu.devices import cpu, discovery, processes
from workers.profiles.gpu.devices.device import Device, list_visibility_variables
from workers.profiles.gpu.engines import selection

GB_MB = 1024
CONTEXTS = ((2048, 1), (8192, 4), (4096, 2))
"""Contexts and slots whose loads are compared with their plans."""

MAX_PLAN_ERROR = 0.02

TAKE_MEMORY = """
import ctypes, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
def check(code):
    if code: sys.exit(f"CUDA error {code}")
check(cuda.cuInit(0))
check(cuda.cuDeviceGet(ctypes.byref(device), 0))
check(cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device))
check(cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(int(sys.argv[1]) << 20)))
print("taken", flush=True)
time.sleep(60)
"""
"""Takes so many MB of the first visible card by the driver's own library, and holds them."""


class Skipped(Exception):
    """A step cannot run here; the text is the reason."""


@dataclass
class Row:
    """One compared figure. `met` is None if there is no bar."""

    step: str
    what: str
    value: Any
    other: Any = None
    met: bool | None = None


@dataclass
class Comparison:
    """All rows, and the steps that were skipped. A rehearsal has no bars: other programs use the CPU too."""

    is_rehearsal: bool = False
    rows: list[Row] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)

    def add(self, step: str, what: str, value: Any, other: Any = None, met: bool | None = None) -> None:
        met = None if self.is_rehearsal else met
        self.rows.append(Row(step, what, value, other, met))
        bar = "" if met is None else ("  ok" if met else "  MISSED")
        beside = "" if other is None else f"  (beside {other})"
        print(f"  {what}: {value}{beside}{bar}", flush=True)


def main() -> int:
    """Run the steps; return the exit code."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=400.0, help="start no step after so many seconds")
    parser.add_argument("--out", type=Path, default=Path("build/on_gpu.json"))
    parser.add_argument("--rehearse", action="store_true", help="load models on the CPU")
    options = parser.parse_args()
    began = time.monotonic()
    found = Comparison(options.rehearse)
    device = _find_device(found, "cpu" if options.rehearse else "cuda")
    steps: list[tuple[str, Callable[[Comparison, Device], None]]] = [
        ("driver", compare_with_nvidia_smi),
        ("memory", follow_memory),
        ("plan", compare_plans),
        ("speed", compare_speed),
    ]
    for name, step in steps:
        print(f"{name} ({time.monotonic() - began:.0f} s)", flush=True)
        try:
            if device is None:
                raise Skipped("there is no NVIDIA GPU here")
            if time.monotonic() - began > options.seconds - 60:
                raise Skipped("no time is left for it")
            step(found, device)
        except Skipped as exc:
            found.skipped[name] = str(exc)
            print(f"  skipped: {exc}", flush=True)
        except Exception as exc:  # the other steps go on
            found.rows.append(Row(name, "failed", f"{type(exc).__name__}: {exc}", met=False))
            print(f"  failed: {type(exc).__name__}: {exc}", flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(asdict(found), indent=2) + "\n")
    missed = [row for row in found.rows if row.met is False]
    print(
        f"{len(found.rows)} figures, {len(missed)} missed, {len(found.skipped)} steps skipped: {options.out}"
    )
    return 1 if missed else 0


def _find_device(found: Comparison, backend: str) -> Device | None:
    """Return the first device of `backend`, and say what is on this machine."""
    print("devices", flush=True)
    devices, missing = discovery.find_devices()
    for each in devices:
        found.add("devices", each.device, f"{each.name}, {each.memory_mb} MB, {each.free_mb} free")
    for sentence in missing:
        print(f"  missing: {sentence}", flush=True)
    return next((each for each in devices if each.backend == backend), None)


def compare_with_nvidia_smi(found: Comparison, device: Device) -> None:
    """Compare a reading with what nvidia-smi prints of the same card."""
    if device.backend != "cuda" or shutil.which("nvidia-smi") is None:
        raise Skipped("there is no nvidia-smi")
    fields = "name,uuid,memory.total,memory.free,compute_cap,temperature.gpu,power.draw,utilization.gpu"
    printed = subprocess.run(
        ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"],
        capture_output=True, text=True, check=True, timeout=30,
    ).stdout  # fmt: skip
    lines = [[cell.strip() for cell in line.split(",")] for line in printed.splitlines()]
    line = next((each for each in lines if each[1] == device.uuid), None)
    if line is None:
        raise Skipped("the device is a MIG instance, which nvidia-smi lists elsewhere")
    reading = discovery.read_device("cuda", device.uuid)
    compute = device.compute_cap and f"{device.compute_cap[0]}.{device.compute_cap[1]}"
    found.add("driver", "name", device.name, line[0], device.name == line[0])
    found.add("driver", "compute capability", compute, line[4], compute == line[4])
    found.add(
        "driver", "memory, MB", reading.memory_mb, line[2], abs(reading.memory_mb - float(line[2])) <= 1
    )
    close = abs(reading.free_mb - float(line[3])) <= 64
    found.add("driver", "free, MB", reading.free_mb, line[3], close)
    found.add("driver", "temperature", reading.temperature, line[5])
    found.add("driver", "power, W", reading.power_watts, line[6])
    found.add("driver", "utilisation", reading.utilisation, line[7])
    found.add("driver", "energy, J", reading.energy_joules)
    found.add("driver", "faults", list(reading.faults))
    found.add("driver", "not told", dict(reading.unknown))
    seconds = []
    for _ in range(20):
        began = time.perf_counter()
        discovery.read_device("cuda", device.uuid)
        seconds.append(time.perf_counter() - began)
    found.add("driver", "a reading takes, ms", round(median(seconds) * 1e3, 2))


def follow_memory(found: Comparison, device: Device) -> None:
    """Take a gigabyte in a child of ours: it is seen, known as ours, as an orphan's, and given back."""
    if device.backend != "cuda":
        raise Skipped("there is no card")
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise Skipped("the driver's libcuda.so.1 is not installed") from None
    before = discovery.read_device("cuda", device.uuid).free_mb
    with _take_memory(device, GB_MB, processes.make_owner_mark()) as child:
        reading = discovery.read_device("cuda", device.uuid)
        taken = before - reading.free_mb
        found.add("memory", "free memory falls by, MB", taken, f"{GB_MB} taken", taken >= GB_MB)
        listed = {each.pid: each for each in reading.processes or ()}
        own = listed.get(child.pid)
        if own is None:
            found.add("memory", "the driver lists processes", sorted(listed), child.pid)
        else:
            found.add("memory", "whose it is", own.whose, "ours", own.whose == "ours")
            if own.memory_mb is not None:
                found.add("memory", "its memory, MB", own.memory_mb, GB_MB, own.memory_mb >= GB_MB)
        use = processes.summarize_memory(reading, GB_MB)
        found.add("memory", "used, MB", use.used, GB_MB, use.used >= GB_MB)
        ended = time.monotonic()
    while discovery.read_device("cuda", device.uuid).free_mb < before - 32 and time.monotonic() - ended < 10:
        time.sleep(0.02)
    back = time.monotonic() - ended
    found.add("memory", "given back after the process ended, s", round(back, 2), met=back < 10)
    with _take_memory(device, 64, {processes.OWNER_VARIABLE: f"{os.getpid()}:1"}) as child:
        listed = {each.pid: each for each in discovery.read_device("cuda", device.uuid).processes or ()}
        if child.pid in listed:
            whose = listed[child.pid].whose
            found.add("memory", "a child whose owner is gone", whose, "orphan", whose == "orphan")


@contextmanager
def _take_memory(device: Device, megabytes: int, mark: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    visible = list_visibility_variables("cuda", device.uuid)
    child = subprocess.Popen(
        [sys.executable, "-c", TAKE_MEMORY, str(megabytes)],
        env={**os.environ, **visible, **mark}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert child.stdout is not None
        if child.stdout.readline().strip() != "taken":
            _, error = child.communicate(timeout=10)
            raise Skipped(f"no memory can be taken: {error.strip()[-200:]}")
        yield child
    finally:
        child.kill()
        child.communicate()


def _choose_engine(device: Device) -> str:
    """Return an installed engine that can use the device, one with a dry run first."""
    able = [
        name
        for name in selection.PACKAGES
        if selection.is_installed(name) and device.backend in selection.create_engine(name).list_backends()
    ]
    if not able:
        raise Skipped(f"no installed engine is built for {device.backend}")
    return min(able, key=lambda name: not selection.create_engine(name).has_dry_run)


def _choose_file() -> Path:
    """Return the GGUF file to load."""
    named = os.environ.get("GRIDQ_GPU_MODEL")
    if named:
        return Path(named)
    try:
        return next(each for each in load_catalogue() if each.package).locate_file()
    except Exception as exc:
        raise Skipped(f"there is no model: {exc}; set GRIDQ_GPU_MODEL to a GGUF file") from None


def compare_plans(found: Comparison, device: Device) -> None:
    """Load a model in three shapes: the plan beside what the driver says that its process holds."""
    from workers.profiles.gpu.memory.device_book import Refusal
    from workers.profiles.gpu.model_loader import ModelLoader

    engine, file = _choose_engine(device), _choose_file()
    for context, slots in CONTEXTS:
        with tempfile.TemporaryDirectory(prefix="gridq-bench-") as folder:
            os.environ["GRIDQ_DEVICE_BOOKS"] = str(Path(folder) / "books")
            seat = GpuSeat(
                device=device.device,
                backend=device.backend,
                uuid=device.uuid,
                concurrency=slots,
                engine=engine,
                memory_mb=device.compute_usable_mb(),
                device_mb=device.compute_usable_mb(),
                prompt_cache_mb=0,
            )
            loader = ModelLoader(seat, Path(folder))
            model = Model(name="one", file=str(file), context=context, embeddings=False)
            hold = loader.reserve(model)
            if isinstance(hold, Refusal):
                raise Skipped(f"the model does not fit: {hold}")
            planned = hold.mb
            before = discovery.read_device(device.backend, device.uuid).free_mb
            began = time.monotonic()
            process = loader.load(model, hold, StageContext())
            seconds = time.monotonic() - began
            fallen = before - discovery.read_device(device.backend, device.uuid).free_mb
            if device.backend == "cpu":  # other programs take and give memory all the time
                fallen = process.measure_memory_mb()
            loader.unload(process, hold)
        what = f"{context} tokens on {slots} slots"
        met = abs(planned - fallen) <= max(MAX_PLAN_ERROR * fallen, 32)
        found.add("plan", f"{what}: planned, MB", planned, f"{fallen} taken", met)
        found.add("plan", f"{what}: load, s", round(seconds, 2))


class EngineAlone:
    """The engine in this process, without the grid."""

    def __init__(self, engine: str, file: Path, scratch: Path, layers: int) -> None:
        self._engine = selection.create_engine(engine)
        self._engine.load(
            str(file),
            context=2048,
            concurrency=1,
            threads=cpu.count_spare_cores(),
            gpu_layers=layers,
            embeddings=False,
            kv_type="f16",
            prompt_cache_mb=0,
            scratch=str(scratch),
        )

    def ask(self, prompt: str, tokens: int) -> Answer:
        answer = Answer()
        body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        self._engine.generate("completions", body, answer.note_chunk)
        return answer


def compare_speed(found: Comparison, device: Device) -> None:
    """Ask the engine alone and through the grid, in turns: the first token, and tokens per second."""
    engine, file = _choose_engine(device), _choose_file()
    os.environ |= list_visibility_variables(device.backend, device.uuid)
    model = make_model("one", file=str(file))
    with (
        tempfile.TemporaryDirectory(prefix="gridq-bench-") as folder,
        run_grid(seat=device.device, engine=engine, models=[model], concurrency=1, prompt_cache_mb=0) as grid,
    ):
        alone = EngineAlone(engine, file, Path(folder), 0 if device.backend == "cpu" else -1)
        tokens = 16 if found.is_rehearsal else 200
        through, direct = measure_paces((grid, alone), rounds=15, rate_rounds=4, tokens=tokens)
    added, own = (through.first - direct.first) * 1e3, round(direct.first * 1e3, 2)
    found.add("speed", "first token through the grid, ms more", round(added, 2), own, added <= MAX_ADDED_MS)
    rate, own = round(through.rate, 1), round(direct.rate, 1)
    met = through.rate >= MIN_RATE_SHARE * direct.rate
    found.add("speed", "tokens per second through the grid", rate, own, met)


if __name__ == "__main__":
    sys.exit(main())
