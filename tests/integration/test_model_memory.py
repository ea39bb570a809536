"""The memory of a real model: what is planned, what it takes, and what happens if it is not there."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gridq.config.settings import settings
from gridq.errors import GridError, ModelFileError, SeatMemoryShort, SeatUnavailable
from gridq.profiles.profile import StageContext
from gridq.protocol.models import Effect, StageCall
from tests.small_model import NEEDS_SMALL_MODEL
from tests.waiting import wait_for
from workers.model_apis.model_catalogue import Model, load_catalogue
from workers.profiles.gpu import GpuProfile
from workers.profiles.gpu.capability import GpuCapability, GpuSeat
from workers.profiles.gpu.devices.processes import measure_resident_mb
from workers.profiles.gpu.memory.device_book import BOOKS_VARIABLE, DeviceBook
from workers.profiles.gpu.memory.dry_run import dry_run
from workers.profiles.gpu.model_loader import Hold, ModelLoader, check_model
from workers.profiles.gpu.model_process import LoadOrder, ModelProcess, make_child_environment

SMOL = next(model for model in load_catalogue() if model.name == "smollm2-135m-instruct")

pytestmark = NEEDS_SMALL_MODEL

LOADED = """
import os, sys, xllamacpp
params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.n_ctx, params.n_parallel = int(sys.argv[2]) * int(sys.argv[3]), int(sys.argv[3])
params.n_gpu_layers = params.cache_ram_mib = 0
params.fit_params = params.warmup = False
params.cache_type_k = params.cache_type_v = getattr(xllamacpp.ggml_type, "GGML_TYPE_" + sys.argv[4].upper())
if sys.argv[4].startswith("q"):
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
params.verbosity = 4
server = xllamacpp.Server(params)  # kept: its cleanup may hang
os._exit(0)
"""
"""Loads a model as `XllamaCppEngine` does, with llama.cpp's own words about its buffers."""


@pytest.fixture(autouse=True)
def _home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("GRIDQ_HOME", str(tmp_path / "home"))
    monkeypatch.setenv(BOOKS_VARIABLE, str(tmp_path / "books"))
    monkeypatch.setenv("GRIDQ_ENGINE", "xllamacpp")
    settings.cache_clear()
    yield
    settings.cache_clear()


def make_order(context: int, slots: int, kv_type: str = "f16") -> LoadOrder:
    return LoadOrder(
        "smol", "xllamacpp", SMOL.locate_file(), context, slots, 1, 0, False, {}, kv_type=kv_type
    )


def open_seat(**table: Any) -> GpuProfile:
    profile = GpuProfile()
    offer = profile.probe({"gpus": False, "prompt_cache_mb": 0, **table}).found[0]
    profile.open(GpuCapability.model_validate(offer.capability), offer.config)
    return profile


def ask(profile: GpuProfile, model: str = "smollm2", words: int = 1) -> Any:
    effects = [Effect(effect="Llm", model=model)]
    call = StageCall(id="s", name="s", path="$", implementation="llm:complete", effects=effects)
    return profile.run(call, {"prompt": "rain " * words, "max_tokens": 1}, StageContext())


def read_books(path: Path) -> list[dict[str, Any]]:
    return DeviceBook("cpu", path).read()


@pytest.mark.parametrize(
    ("context", "slots", "kv_type"),
    [(2048, 1, "f16"), (2048, 4, "f16"), (8192, 2, "f16"), (8192, 2, "q8_0"), (8192, 2, "f32")],
)
def test_a_dry_run_is_within_two_percent_of_the_loaded_engine(context: int, slots: int, kv_type: str):
    found = dry_run(make_order(context, slots, kv_type))
    assert found.reason == ""
    arguments = [str(SMOL.locate_file()), str(context), str(slots), kv_type]
    loaded = subprocess.run(
        [sys.executable, "-c", LOADED, *arguments],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, env=make_child_environment({}),
        timeout=120, check=False,
    )  # fmt: skip
    sizes = re.findall(r"(?:model|KV|compute|output) buffer size = +([\d.]+) MiB", loaded.stderr)
    assert len(sizes) >= 4
    actual = sum(map(float, sizes))
    assert actual <= found.device_mb + found.host_mb <= actual * 1.02


def test_a_model_with_quantized_keys_and_values_answers_in_less_memory():
    needs = {}
    for kv_type in ("f16", "q8_0"):
        model = {"name": "smol", "file": str(SMOL.locate_file()), "context": 8192, "kv_type": kv_type}
        profile = open_seat(models=[{**model, "embeddings": False}])
        try:
            assert ask(profile, "smol", words=50)
            assert profile._runner is not None
            [loaded] = profile._runner.loaded_models.list_loaded()
            needs[kv_type] = loaded.hold.mb
        finally:
            profile.close()
    assert 200 < needs["f16"] - needs["q8_0"] < 500, "keys and values of 4 slots take 720 MB as f16"


def test_a_plan_is_never_below_what_is_measured(tmp_path: Path):
    """Before the first load by the dry run, after it by what was measured; the books hold the plan."""
    profile = open_seat()
    try:
        ask(profile, words=1500)
        assert profile._runner is not None
        (process,) = profile._runner.loaded_models.list_processes()
        used = process.measure_memory_mb()
        (entry,) = read_books(tmp_path / "books")
        assert entry["mb"] >= used
        assert entry["mb"] <= 2 * used + 400, "the buffers of embeddings are not touched by text"
    finally:
        profile.close()
    assert read_books(tmp_path / "books") == []
    stored = (tmp_path / "home" / "model_memory.json").read_text()
    assert '"measured"' in stored
    assert '"dry"' in stored
    assert '"load_seconds"' in stored


def test_the_least_that_the_owner_reserves_stays_reserved_while_the_model_is_loaded(tmp_path: Path):
    model = {"name": "smol", "file": str(SMOL.locate_file()), "context": 512, "memory_mb": 3000}
    profile = open_seat(models=[model])
    try:
        for _ in range(2):
            ask(profile, "smol")
            (entry,) = read_books(tmp_path / "books")
            assert (entry["mb"], entry["is_loaded"]) == (3000, True)
    finally:
        profile.close()
    assert read_books(tmp_path / "books") == []


def test_two_homes_do_not_promise_the_same_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The device has room for one model; the seat of the other home says so, and gets it once it is free."""
    first, second = open_seat(), None
    try:
        ask(first)
        (entry,) = read_books(tmp_path / "books")
        monkeypatch.setenv("GRIDQ_HOME", str(tmp_path / "other"))
        settings.cache_clear()
        profile = second = GpuProfile()
        offer = profile.probe({"gpus": False, "prompt_cache_mb": 0}).found[0]
        small = {**offer.config, "device_mb": entry["mb"] + 100}
        profile.open(GpuCapability.model_validate(offer.capability), small)
        with pytest.raises(SeatMemoryShort) as caught:
            ask(profile)
        assert caught.value.details["free_mb"] == 100
        assert caught.value.details["need_mb"] > 100
        first.close()
        ask(profile)
    finally:
        first.close()
        if second is not None:
            second.close()


def test_a_model_without_memory_in_its_table_is_offered_and_runs():
    profile = open_seat(models=[{"name": "mine", "file": str(SMOL.locate_file()), "context": 512}])
    try:
        assert ask(profile, "mine")
    finally:
        profile.close()


def test_a_context_beyond_that_of_the_training_is_refused_at_the_probe():
    table = {"name": "mine", "file": str(SMOL.locate_file()), "context": 16384}
    report = GpuProfile().probe({"gpus": False, "models": [table]})
    (sentence,) = [each for each in report.missing if "mine" in each]
    assert "8192" in sentence
    assert "16384" in sentence
    assert "set context = 8192" in sentence
    assert [model["name"] for model in report.found[0].capability["models"]] == [SMOL.name]
    with pytest.raises(ModelFileError) as caught:
        check_model(Model.model_validate(table))
    assert caught.value.code == "model.context"
    assert "8192" in str(caught.value.reason)


def test_a_model_that_fits_nowhere_says_its_need_and_the_best_device():
    table = {"name": "mine", "file": str(SMOL.locate_file()), "context": 8192}
    report = GpuProfile().probe({"gpus": False, "models": [table], "memory_mb": 500})
    (sentence,) = [each for each in report.missing if "mine" in each]
    assert re.search(r"mine needs \d\.\d GB; best is cpu with \d+\.\d free of \d+\.\d GB", sentence)
    (large,) = [each for each in report.found[0].capability["too_large"] if each["name"] == "mine"]
    assert large["queues"][0] == "llm:mine"
    assert large["need_mb"] > 500


def test_an_architecture_that_the_engine_does_not_know_leaves_the_seat_well(tmp_path: Path):
    data = SMOL.locate_file().read_bytes()
    file = tmp_path / "strange.gguf"
    head = data[:4_000_000].replace(b"llama", b"lxxma")
    file.write_bytes(head + data[4_000_000:])
    profile = open_seat(models=[{"name": "strange", "file": str(file), "context": 512}])
    try:
        with pytest.raises(ModelFileError) as caught:
            ask(profile, "strange")
        assert caught.value.code == "model.architecture"
        assert "architecture" in str(caught.value.reason)
        assert caught.value.fix
        assert profile.health() == ""
        assert ask(profile)
    finally:
        profile.close()


OUT_OF_MEMORY = """
import resource, sys
from gridq.errors import SeatMemoryShort
from gridq.profiles.profile import StageContext
from pathlib import Path
from workers.profiles.gpu import model_process
from workers.profiles.gpu.model_process import LoadOrder, ModelProcess
limit = 1500 * 2**20
order = LoadOrder("smol", "xllamacpp", Path(sys.argv[1]), 8192, 16, 1, 0, False, {})
process = ModelProcess(order)
def restrict():
    resource.prlimit(process.pid, resource.RLIMIT_AS, (limit, limit))
try:
    process.start(StageContext(), restrict)
except SeatMemoryShort as error:
    print(error.code, error.reason)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits the memory of a process")
def test_a_load_that_runs_out_of_memory_is_told_from_a_bad_file():
    """The KV cache of 16 slots takes 2.9 GB, and the process may have 1.5."""
    found = subprocess.run(
        [sys.executable, "-c", OUT_OF_MEMORY, str(SMOL.locate_file())],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert found.stdout.startswith("seat.memory_short"), found.stdout + found.stderr[-500:]


@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGSEGV, SeatUnavailable), (signal.SIGKILL, SeatMemoryShort)]
)
def test_an_engine_that_dies_while_it_loads_is_the_seats_fault_and_the_next_load_works(
    number: signal.Signals, error: type[GridError], tmp_path: Path
):
    """In want of memory the system kills without a word, so a kill by nobody of gridq's counts as that."""
    order = LoadOrder("smol", "xllamacpp", SMOL.locate_file(), 512, 1, 1, 0, False, {})
    process = ModelProcess(order)
    with pytest.raises(error) as caught:
        process.start(StageContext(), lambda: os.kill(process.pid or 0, number))
    assert caught.value.details["model"] == "smol"
    assert caught.value.details["path"] == str(order.path)
    again = ModelProcess(order)
    again.start(StageContext())
    again.close()


def test_a_model_is_loaded_before_it_is_asked_for_and_unloaded_again(tmp_path: Path):
    profile = open_seat()
    try:
        with pytest.raises(SeatUnavailable):
            profile.load("unknown", StageContext())
        profile.load(SMOL.name, StageContext())
        assert "llm:any" in profile.warm_queues()
        assert len(read_books(tmp_path / "books")) == 1
        profile.unload(SMOL.name)
        assert profile.warm_queues() == []
        assert read_books(tmp_path / "books") == []
    finally:
        profile.close()


def test_prompts_that_the_engine_keeps_are_reported_as_cached():
    """Five prompts in turn on four slots: the first is no longer in a slot, but it is in the cache."""
    profile = open_seat(prompt_cache_mb=200)
    try:
        effects = [Effect(effect="Llm", model="smollm2")]
        call = StageCall(id="s", name="s", path="$", implementation="llm:api_request", effects=effects)
        cached = []
        for number in (0, 1, 2, 3, 4, 0):
            text = f"Story {number}. " + "A small boat sails past green hills. " * 20
            body = {"model": "smollm2", "messages": [{"role": "user", "content": text}], "max_tokens": 1}
            request = {"api": "openai", "path": "chat/completions", "body": body}
            answer = profile.run(call, request, StageContext())
            details = answer["usage"].get("prompt_tokens_details") or {}
            cached.append((details.get("cached_tokens", 0), answer["usage"]["prompt_tokens"]))
        assert cached[-1][0] > 0.8 * cached[-1][1]
        assert cached[0][0] == 0
    finally:
        profile.close()


def test_the_memory_of_kept_prompts_is_part_of_the_reservation(tmp_path: Path):
    """Whatever it is set to, 0 included, and before it is used; a changed setting is another shape."""
    reserved = {}
    for limit in (0, 300, 100, 0):
        profile = open_seat(prompt_cache_mb=limit)
        try:
            ask(profile)
            assert profile._runner is not None
            [loaded] = profile._runner.loaded_models.list_loaded()
            assert loaded.process.order.prompt_cache_mb == limit
            (entry,) = read_books(tmp_path / "books")
            reserved.setdefault(limit, entry["mb"])
            assert entry["mb"] == reserved[limit], "it is found again as it was measured"
        finally:
            profile.close()
        assert read_books(tmp_path / "books") == []
    assert abs(reserved[300] - reserved[0] - 300) <= 5
    assert abs(reserved[100] - reserved[0] - 100) <= 5


def test_an_engine_that_is_killed_gives_back_the_memory_of_its_prompts(tmp_path: Path):
    profile = open_seat(prompt_cache_mb=200)
    try:
        ask(profile)
        (before,) = read_books(tmp_path / "books")
        assert profile._runner is not None
        (process,) = profile._runner.loaded_models.list_processes()
        process.kill()
        wait_for(lambda: not process.is_alive)
        assert read_books(tmp_path / "books") == [], "nobody holds it any more"
        ask(profile)
        (after,) = read_books(tmp_path / "books")
        assert abs(after["mb"] - before["mb"]) <= 5
    finally:
        profile.close()


def make_loader(**seat: Any) -> ModelLoader:
    offer = GpuProfile().probe({"gpus": False, "prompt_cache_mb": 200, "concurrency": 1}).found[0]
    return ModelLoader(GpuSeat.model_validate({**offer.config, **seat}))


def test_an_engine_that_keeps_no_prompts_reserves_nothing_for_them():
    limits = {
        engine: make_loader(engine=engine).plan(SMOL).order.prompt_cache_mb
        for engine in ("llama_cpp", "xllamacpp")
    }
    assert limits == {"llama_cpp": 0, "xllamacpp": 200}


def test_beside_a_gpu_the_prompts_that_are_to_come_are_reserved_in_the_machines_memory(
    monkeypatch: pytest.MonkeyPatch,
):
    loader = make_loader(device="gpu0", backend="cuda", uuid="GPU-1")
    held = SimpleNamespace(pid=os.getpid(), memory_mb=500)
    monkeypatch.setattr(loader, "_read_gpu", lambda: SimpleNamespace(processes=[held], free_mb=7000))
    plan = loader.plan(SMOL)
    assert plan.order.prompt_cache_mb == 200
    used_mb = measure_resident_mb(os.getpid())
    need = loader._record(Hold(plan), held, 1.0)  # type: ignore[arg-type]
    assert need.source == "measured"
    assert need.device_mb == 500
    assert need.host_mb >= used_mb + 200
    assert loader._record(Hold(plan), held, None).host_mb == need.host_mb  # type: ignore[arg-type]


def test_a_load_whose_second_book_cannot_be_written_gives_the_device_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    loader = make_loader(device="gpu0", backend="cuda", uuid="GPU-1")
    monkeypatch.setattr(loader, "_read_gpu", lambda: SimpleNamespace(processes=[], free_mb=7000))
    (tmp_path / "books").mkdir(mode=0o700)
    (tmp_path / "books" / "cpu.json.lock").mkdir()
    with pytest.raises(SeatUnavailable):
        loader.reserve(SMOL)
    assert DeviceBook("GPU-1", tmp_path / "books").read() == []
