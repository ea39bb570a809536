"""Load a model on a seat's device: check its file, reserve its memory, start its process, measure it."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from gridq.config.settings import settings
from gridq.errors import ConfigError, ModelContextTooLong, SeatMemoryShort, SeatUnavailable
from gridq.profiles.profile import StageContext
from workers.model_apis.model_catalogue import CHECKSUM_CACHE, Model, verify_file
from workers.profiles.gpu.capability import GpuSeat
from workers.profiles.gpu.devices import cpu, discovery
from workers.profiles.gpu.devices.device import (
    CARD_BACKENDS,
    DeviceError,
    Reading,
    list_visibility_variables,
)
from workers.profiles.gpu.devices.processes import measure_resident_mb, measure_tree_mb, sum_tree_mb
from workers.profiles.gpu.engines import selection
from workers.profiles.gpu.engines.base import DEFAULT_KV_TYPE, KV_TYPES
from workers.profiles.gpu.memory.device_book import DeviceBook, Refusal, Reservation
from workers.profiles.gpu.memory.gguf_file import GgufHeader, make_file_error, read_gguf
from workers.profiles.gpu.memory.model_needs import ModelNeeds, Need, compute_need
from workers.profiles.gpu.model_files.local_models import LocalModels
from workers.profiles.gpu.model_files.model_folders import check_folders
from workers.profiles.gpu.model_process import LoadOrder, ModelProcess

ALL_LAYERS = -1
CPU_KEY = "cpu"

MAX_PROMPT_CACHE_MB = 8192
PROMPT_CACHE_SHARE = 16
"""Finished prompts may take this part of the machine's memory for each model, at most MAX_PROMPT_CACHE_MB."""

SPARE_SHARE = 4
"""They take no more than this part of what the model itself leaves of the seat's memory."""

RETURN_SECONDS = 5.0
"""How long to wait for a driver to report memory that was given back. CUDA takes 0.5 to 1.5 s."""

RETURN_POLL_SECONDS = 0.1
RETURNED_SHARE = 0.75


@dataclass(frozen=True)
class LoadPlan:
    """A load that may begin: what the engine is told, what the file says, and the memory it will take.
    `least_mb` is what the owner wants to be reserved on the device at least, as long as it is loaded.
    """

    order: LoadOrder
    header: GgufHeader
    need: Need
    least_mb: int = 0

    def change_need(self, need: Need) -> LoadPlan:
        """Return the plan with what is known of the need now."""
        return replace(self, need=replace(need, device_mb=max(need.device_mb, self.least_mb)))


class Hold:
    """The memory that one load has reserved: on the device, and beside a GPU in the machine's memory."""

    def __init__(self, plan: LoadPlan, *reservations: Reservation) -> None:
        self.plan = plan
        self._reservations = reservations

    @property
    def mb(self) -> int:
        return self._reservations[0].mb

    def assign(self, pid: int | None) -> None:
        for each in self._reservations:
            each.assign(pid)

    def settle(self, need: Need, pid: int | None) -> None:
        for each, mb in zip(self._reservations, (need.device_mb, need.host_mb), strict=False):
            each.settle(mb, pid)

    def release(self) -> None:
        for each in self._reservations:
            each.release()


class ModelLoader:
    """Plans, loads and unloads the models of one seat."""

    def __init__(self, seat: GpuSeat, home: Path | None = None) -> None:
        self._seat = seat
        self._home = home or settings().home
        self._needs = ModelNeeds(self._home)
        self._key = seat.uuid or seat.device
        self._book = DeviceBook(self._key)
        self._host_book = DeviceBook(CPU_KEY)
        self._holder = f"{self._home}:{seat.device}:{secrets.token_hex(4)}"
        self._plans: dict[str, LoadPlan] = {}
        self._lock = threading.Lock()

    def reserve(self, model: Model) -> Hold | Refusal:
        """Reserve the memory that `model` needs. Runs a dry run of the engine before the first load.

        Raises ModelFileError if the file cannot be loaded, or has another checksum than its table states, and
        SeatUnavailable if a book of the memory cannot be written.
        """
        check_folders(model.name, list_files(model), self._seat.model_folders, self._home)
        verify_file(model, self._home / CHECKSUM_CACHE)  # before any engine sees it
        plan = self.plan(model, can_dry_run=True)
        need = plan.need
        on_device = self.reserve_memory(need.device_mb, model.name)
        if isinstance(on_device, Refusal):
            return on_device
        if not need.host_mb:
            return Hold(plan, on_device)
        try:
            in_host = self._host_book.reserve(
                need.host_mb,
                total_mb=cpu.measure_total_mb(),
                free_mb=cpu.measure_available_mb(),
                holder=self._holder,
                model=model.name,
                measure=measure_resident_mb,
            )
        except SeatUnavailable:
            on_device.release()
            raise
        if isinstance(in_host, Refusal):
            on_device.release()
            return in_host
        return Hold(plan, on_device, in_host)

    def reserve_memory(self, mb: int, name: str) -> Reservation | Refusal:
        """Reserve `mb` of the device for the model or stage `name`, at once or not at all."""
        seat, reading = self._seat, self._read_gpu()  # once for all: the book is locked while it measures
        return self._book.reserve(
            mb,
            total_mb=seat.device_mb or seat.memory_mb,
            free_mb=self._find_free_mb(reading),
            cap_mb=seat.memory_mb,
            holder=self._holder,
            model=name,
            measure=lambda pid: self._find_process_mb(reading, pid),
        )

    def measure_memory_mb(self, pid: int) -> int | None:
        """Return the memory of the device that a process and its descendants hold; None if the driver does
        not tell.
        """
        reading = self._read_gpu()
        if self._seat.backend in CARD_BACKENDS and (reading is None or reading.processes is None):
            return None
        return self._find_process_mb(reading, pid)

    def await_end_on_device(self, pids: Collection[int]) -> None:
        """Wait until the driver lists none of these processes, which have ended, as long as it answers."""
        end = time.monotonic() + RETURN_SECONDS
        while pids and time.monotonic() < end:
            reading = self._read_gpu()
            processes = reading.processes if reading else None
            if not any(each.pid in pids for each in processes or ()):
                return
            time.sleep(RETURN_POLL_SECONDS)

    def plan(self, model: Model, *, can_dry_run: bool = False) -> LoadPlan:
        """Return what a load of `model` would be, with the best that is known of its memory."""
        path = model.locate_file().absolute()  # not resolved: a split file finds its parts by its name
        header = read_gguf(path, model.name)
        order = self._make_order(model, path, header)
        build = selection.read_version(order.engine)
        if can_dry_run:
            has_dry_run = selection.create_engine(order.engine).has_dry_run
            need = self._needs.determine(order, header, self._key, build, can_dry_run=has_dry_run)
        else:
            need = self._needs.find(order, header, self._key, build)
        plan = LoadPlan(order, header, need, model.memory_mb or 0).change_need(need)
        with self._lock:
            self._plans[model.name] = plan
        return plan

    def get_load_seconds(self, name: str) -> float | None:
        """Return how long the model's last load took on this device, None if it is not known."""
        with self._lock:
            plan = self._plans.get(name)
        return plan.need.load_seconds if plan else None

    def load(self, model: Model, hold: Hold, context: StageContext) -> ModelProcess:
        """Load `model` into its own process, and remember what it takes.

        Raises SeatMemoryShort if memory ran out, and the errors of `ModelProcess.start`.
        """
        with suppress(ConfigError):  # the disk is full: the model is only not known to be used now
            LocalModels(self._home).note_use(model.name)
        order = hold.plan.order
        process = ModelProcess(order)
        started_at = time.monotonic()
        process.start(context, on_spawn=lambda: hold.assign(process.pid))
        seconds = time.monotonic() - started_at
        need = self._record(hold, process, seconds)
        hold.settle(need, process.pid)
        return process

    def unload(self, process: ModelProcess, hold: Hold) -> None:
        """End a model's process, wait until the driver reports its memory as free, and give it back."""
        if process.is_alive:
            self._record(hold, process, None)
        reading = self._read_gpu()
        taken = self._find_process_mb(reading, process.pid)
        process.close()
        if reading is not None:
            self._await_free(reading.free_mb + int(taken * RETURNED_SHARE))
        hold.release()

    def make_short_error(self, model: Model, refusal: Refusal) -> SeatMemoryShort:
        """Return the error of a model for which no memory is free now. Another seat may have it."""
        return make_short_error("model", model.name, self._seat.device, refusal, "lower the model's context")

    def _make_order(self, model: Model, path: Path, header: GgufHeader) -> LoadOrder:
        assert self._seat.engine is not None
        order = LoadOrder(
            model=model.name,
            engine=self._seat.engine,
            path=path,
            context=fit_context(model, path, header),
            concurrency=self._seat.concurrency,
            threads=self._seat.threads,
            gpu_layers=0 if self._seat.backend == "cpu" else ALL_LAYERS,
            embeddings=model.embeddings,
            kv_type=model.kv_type,
            devices=list_visibility_variables(self._seat.backend, self._seat.uuid),
        )
        if not selection.create_engine(order.engine).keeps_prompts:
            return order
        return replace(order, prompt_cache_mb=self._compute_prompt_cache_mb(compute_need(order, header)))

    def _compute_prompt_cache_mb(self, need: Need) -> int:
        seat = self._seat
        limit = seat.prompt_cache_mb
        if limit is None:
            limit = min(MAX_PROMPT_CACHE_MB, cpu.measure_total_mb() // PROMPT_CACHE_SHARE)
        has_mb, needs_mb = seat.memory_mb, need.device_mb
        if seat.backend != "cpu":
            has_mb, needs_mb = cpu.measure_total_mb(), need.host_mb
        return min(limit, max(0, has_mb - needs_mb) // SPARE_SHARE)

    def _record(self, hold: Hold, process: ModelProcess, seconds: float | None) -> Need:
        """Remember what the process takes, and return the need of its model as it is known now."""
        order, header = hold.plan.order, hold.plan.header
        build = selection.read_version(order.engine)
        device_mb = self._find_process_mb(self._read_gpu(), process.pid, peak=True)
        host_mb = 0 if order.gpu_layers == 0 else measure_resident_mb(process.pid, peak=True)
        if host_mb and seconds is not None:
            host_mb += order.prompt_cache_mb  # it has just been loaded, so its prompts are to come
        if device_mb:
            self._needs.record(
                order,
                header,
                self._key,
                build,
                device_mb=device_mb,
                host_mb=host_mb,
                load_seconds=seconds,
            )
        plan = hold.plan.change_need(self._needs.find(order, header, self._key, build))
        with self._lock:
            self._plans[order.model] = plan
        return plan.need if device_mb else hold.plan.need

    def _read_gpu(self) -> Reading | None:
        """Return a reading of the seat's GPU; None on the CPU, or if the driver does not answer."""
        if self._seat.backend not in CARD_BACKENDS:
            return None
        try:
            return discovery.read_device(self._seat.backend, self._seat.uuid)
        except DeviceError:
            return None

    def _find_free_mb(self, reading: Reading | None) -> int | None:
        """Return the memory that is free for models, None if it is not known."""
        if self._seat.backend not in CARD_BACKENDS:
            free = cpu.measure_available_mb()
        elif reading is None:
            return None
        else:
            free = reading.free_mb
        return max(0, free - self._seat.headroom_mb)

    def _find_process_mb(self, reading: Reading | None, pid: int | None, *, peak: bool = False) -> int:
        """Return the memory of the device that a process and its descendants hold, 0 if it is not known."""
        if pid is None:
            return 0
        if self._seat.backend not in CARD_BACKENDS:
            return measure_resident_mb(pid, peak=True) if peak else measure_tree_mb(pid)
        return sum_tree_mb(reading, pid) if reading else 0

    def _await_free(self, expected_mb: int) -> None:
        """Wait until the driver reports so much as free, as long as it answers."""
        end = time.monotonic() + RETURN_SECONDS
        while time.monotonic() < end:
            reading = self._read_gpu()
            if reading is None or reading.free_mb >= expected_mb:
                return
            time.sleep(RETURN_POLL_SECONDS)


def fit_context(model: Model, path: Path, header: GgufHeader) -> int:
    """Return the context to load: the model's, or that of its training if its table states none.

    Raises ModelContextTooLong if the table states more than the model was trained with.
    """
    trained = header.trained_context
    if trained is None or model.context <= trained:
        return model.context
    if "context" in model.model_fields_set:
        raise make_file_error(
            model.name,
            path,
            f"has a context of {trained} tokens, and its table states {model.context}",
            f"the model was trained with {trained} tokens",
            f"set context = {trained} or less",
            kind=ModelContextTooLong,
        )
    return trained


def list_files(model: Model) -> list[Path]:
    """Return the files of a model that the owner or a download put somewhere, not those of a package."""
    return [] if model.package else [model.locate_file(), *map(Path, model.parts)]


def check_model(model: Model, folders: Sequence[str] = ()) -> GgufHeader:
    """Return the header of the model's file. Raises ModelFileError if no engine could load it, or if it is in
    none of the `folders` that the owner allows.
    """
    check_folders(model.name, list_files(model), folders, settings().home)
    path = model.locate_file()
    if not path.is_file():
        raise make_file_error(
            model.name, path, "does not exist", str(path), "put the file there, or correct 'file'"
        )
    header = read_gguf(path, model.name)
    fit_context(model, path, header)
    _check_kv_type(model, path, header)
    return header


def _check_kv_type(model: Model, path: Path, header: GgufHeader) -> None:
    """Raise ModelFileError if the model's keys or values cannot be stored in the type that its table states:
    quantized types store whole blocks.
    """
    _, block, _ = KV_TYPES[model.kv_type]
    sizes = header.get_head_sizes()
    if any(size % block for size in sizes):
        raise make_file_error(
            model.name,
            path,
            f"has keys and values of {' and '.join(map(str, sizes))} elements, and its table states the "
            f"kv_type {model.kv_type!r}",
            f"a multiple of {block} elements",
            f'set kv_type = "{DEFAULT_KV_TYPE}"',
        )


def make_short_error(
    kind: Literal["model", "stage"], name: str, device: str, refusal: Refusal, fix: str
) -> SeatMemoryShort:
    """Return the error of a model or stage for which a device has no memory now. `fix`: the last resort."""
    return SeatMemoryShort(
        f"The {kind} {name!r} needs {format_gb(refusal.need_mb)}; "
        f"{device} has {format_gb(refusal.free_mb)} free of {format_gb(refusal.total_mb)}",
        {
            kind: name,
            "need_mb": refusal.need_mb,
            "free_mb": refusal.free_mb,
            "total_mb": refusal.total_mb,
            "retry_after": 5.0,
            "fix": f"wait, end other programs that use the device, or {fix}",
        },
    )


def format_gb(mb: float) -> str:
    """Return MB as people state the memory of cards: `18.2 GB` (of 1,024 MB)."""
    return f"{mb / 1024:.1f} GB"
