"""Python stages on a device, each in a real process of its own: on this machine's CPU, and on cards of a
stand-in for NVIDIA's library.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gridq.config.settings import settings
from gridq.errors import (
    ChildDied,
    GridError,
    JobCancelled,
    OutputTooLarge,
    SeatMemoryShort,
    SeatUnavailable,
    StageError,
    StageMemoryExceeded,
    StageTimeout,
    ValueNotJson,
    WrongType,
)
from gridq.profiles.profile import StageContext
from gridq.protocol.models import Effect, Json, StageCall
from tests.fakes import nvml
from tests.processes import is_running
from tests.small_model import NEEDS_SMALL_MODEL
from tests.waiting import wait_for
from workers.profiles.gpu import GpuProfile
from workers.profiles.gpu.capability import GpuCapability
from workers.profiles.gpu.devices import nvidia
from workers.profiles.gpu.devices.processes import list_by_variable, read_variable
from workers.profiles.gpu.memory.device_book import BOOKS_VARIABLE, DeviceBook
from workers.profiles.gpu.python_stages import stage_child

MODULE = "stages_for_devices"
CODE = r'''
import os, pathlib, signal, stat, subprocess, sys, time
from gridq import Gpu, StageContext, stage
from gridq.protocol.models import Usage

NAMES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "OPENAI_API_KEY", "GRIDQ_BROKER_URL", "GRIDQ_OWNER")

@stage(effects=[Gpu(memory_mb=400, backend="cpu")])
def look(value, context):
    print("printed text is no part of the protocol")
    for number in range(3):
        context.emit(number)
    context.report(Usage(tokens_in=7))
    return {**{name: os.environ.get(name) for name in NAMES}, "value": value, "pid": os.getpid(),
            "job": context.job, "attempt": context.attempt}

@stage(effects=[Gpu(memory_mb=400)])
def wait(value):
    """Notes its process, and waits until the file `go` is there."""
    folder = pathlib.Path(value)
    folder.joinpath(str(os.getpid())).touch()
    while not folder.joinpath("go").exists():
        time.sleep(0.02)
    return "done"

DAEMON = """
import os, pathlib, sys, time
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
pathlib.Path(sys.argv[1], str(os.getpid())).touch()
time.sleep(100)
"""

@stage
def leave_daemon(value):
    """Starts a process that leaves it: with its own session, and without a parent."""
    subprocess.run([sys.executable, "-c", DAEMON, value["folder"]], check=True)
    while not os.listdir(value["folder"]):
        time.sleep(0.02)
    time.sleep(value["seconds"])
    return "left"

@stage
def allocate(value):
    block = bytearray(value * 2**20)
    for at in range(0, len(block), 4096):
        block[at] = 1
    time.sleep(60)

@stage
def attack(value):
    how, folder = value["how"], value["folder"]
    subprocess.run([sys.executable, "-c", DAEMON, folder], check=True)
    while not os.listdir(folder):
        time.sleep(0.02)
    if how == "stop":
        os.kill(os.getppid(), signal.SIGSTOP)
    if how == "kill":
        os.kill(os.getppid(), signal.SIGKILL)
    if how == "ignore":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if how == "stop itself":
        os.kill(os.getpid(), signal.SIGSTOP)
    if how == "comet" and os.fork() == 0:
        os.setsid()
        end = time.monotonic() + 30
        while time.monotonic() < end:
            if os.fork():
                os._exit(0)
        os._exit(0)
    if how == "close":
        os.closerange(0, 100)
    time.sleep(100)

def write_to_pipe(data):
    """Writes to all pipes that are open, those of gridq included."""
    for each in os.listdir("/proc/self/fd"):
        try:
            if stat.S_ISFIFO(os.stat(f"/proc/self/fd/{each}").st_mode) and int(each) > 2:
                os.write(int(each), data)
        except OSError:
            pass

GARBAGE = {"number": b"7\n", "bytes": b"\xff\x00\n", "pieces": b'{"pieces":5}\n',
           "usage": b'{"usage":{"seconds":"x"}}\n',
           "error": b'{"error":[1]}\n', "exit": b'{"exit":"x"}\n', "nested": b"[" * 100000 + b"\n"}

@stage
def write_garbage(value):
    if value == "long":
        for _ in range(2000):
            write_to_pipe(b"x" * 65536)
    write_to_pipe(GARBAGE[value])
    return "done"

@stage
def print_much(value):
    print("first", flush=True)
    if not value:
        os._exit(1)
    for _ in range(value):
        os.write(1, b"x" * 2**20 + b"\n")
    print("last", file=sys.stderr)
    return "done"

@stage
def end_oddly(value):
    if value == "nan":
        return float("nan")
    if value == "huge":
        return "x" * 2**24
    if value == "set":
        return {1}
    if value == "interrupt":
        raise KeyboardInterrupt
    if value == "base":
        raise BaseException("x")
    if value == "system exit":
        raise SystemExit(0)
    if value == "exit 0":
        os._exit(0)
    if value == "segfault":
        import ctypes
        ctypes.string_at(0)
    if value == "fork":
        return os.fork() and "one answer"
    if value == "generator":
        return (each for each in "ab")

@stage
async def be_async(value):
    import asyncio
    await asyncio.sleep(0.01)
    return value

@stage(output="Number")
def fail(value):
    if value == "die":
        os.kill(os.getpid(), 9)
    if value == "exit":
        os._exit(3)
    if value == "text":
        return "text"
    raise ValueError(f"bad {value}")
'''


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    code = tmp_path / "code"
    code.mkdir()
    (code / f"{MODULE}.py").write_text(CODE)
    monkeypatch.syspath_prepend(str(code))
    monkeypatch.setenv("GRIDQ_STAGES", MODULE)
    monkeypatch.setenv("GRIDQ_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("OPENAI_API_KEY", "sk-must-not-reach-a-child")
    monkeypatch.setenv(BOOKS_VARIABLE, str(tmp_path / "books"))
    settings.cache_clear()
    yield
    settings.cache_clear()


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[nvml.Driver]:
    """Two cards of 24 GB, of which 20 are free."""
    nvml.load()
    made = nvml.Driver(tmp_path / "nvml")
    monkeypatch.setenv("GRIDQ_STUB_NVML", str(made.path))
    for _ in range(2):
        made.add_card()
    yield made
    made.end_hangs()
    wait_for(lambda: nvidia.DRIVER.stuck_seconds == 0)


def open_seat(seat: str = "cpu", **table: Json) -> GpuProfile:
    profile = GpuProfile()
    report = profile.probe({"gpus": seat != "cpu", **table})
    offer = next(each for each in report.found if each.name == seat)
    profile.open(GpuCapability.model_validate(offer.capability), offer.config)
    return profile


@pytest.fixture
def cpu() -> Iterator[GpuProfile]:
    profile = open_seat()
    yield profile
    profile.close()


@pytest.fixture
def card(driver: nvml.Driver) -> Iterator[GpuProfile]:
    profile = open_seat("gpu1")
    yield profile
    profile.close()


def make_call(name: str, **fields: Json) -> StageCall:
    effects = [Effect(effect="Gpu", **{"memory_mb": 400, **fields})]
    return StageCall(
        id="s", name=name, path="root", implementation=f"python:{MODULE}:{name}", effects=effects
    )


class Run:
    """A stage that runs on a thread of its own."""

    def __init__(self, profile: GpuProfile, name: str, value: Json, **fields: Json) -> None:
        self.context = StageContext(job="j", agent="ann")
        self.output: Any = None
        self.error: GridError | None = None
        self._call = make_call(name, **fields)
        self._thread = threading.Thread(target=self._run, args=(profile, value), daemon=True)
        self._thread.start()

    def _run(self, profile: GpuProfile, value: Json) -> None:
        try:
            self.output = profile.run(self._call, value, self.context)
        except GridError as error:
            self.error = error

    def wait(self, seconds: float = 30) -> Run:
        self._thread.join(seconds)
        assert not self._thread.is_alive()
        return self

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()


def list_pids(folder: Path) -> list[int]:
    return [int(path.name) for path in folder.iterdir() if path.name.isdecimal()]


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    folder = tmp_path / "notes"
    folder.mkdir()
    return folder


def read_book(tmp_path: Path, key: str = "cpu") -> list[dict[str, Any]]:
    return DeviceBook(key, tmp_path / "books").read()


def test_a_stage_sees_no_device_on_the_cpu_and_no_secret(cpu: GpuProfile, tmp_path: Path) -> None:
    pieces: list[Json] = []
    context = StageContext(job="j1", agent="ann", attempt=2, emit=pieces.append)
    found = cpu.run(make_call("look", backend="cpu"), {"text": "é\ud800"}, context)
    assert found["CUDA_VISIBLE_DEVICES"] == found["ROCR_VISIBLE_DEVICES"] == ""
    assert found["OPENAI_API_KEY"] is found["GRIDQ_BROKER_URL"] is None
    assert found["GRIDQ_OWNER"].startswith(f"{os.getpid()}:")
    assert (found["value"], found["job"], found["attempt"]) == ({"text": "é\ud800"}, "j1", 2)
    assert pieces == [0, 1, 2]
    assert context.usage.tokens_in == 7
    assert context.usage.seconds > 0
    assert not is_running(found["pid"])
    assert read_book(tmp_path) == []
    assert cpu.metrics()["gpu_seconds_total"] == pytest.approx(context.usage.seconds, abs=0.5)


def test_a_stage_on_a_card_sees_that_card_alone_by_its_uuid(card: GpuProfile) -> None:
    found = card.run(make_call("look"), None, StageContext())
    assert found["CUDA_VISIBLE_DEVICES"] == "GPU-1"
    assert found["ROCR_VISIBLE_DEVICES"] == ""


def test_stages_on_one_card_never_reserve_more_than_is_free(
    card: GpuProfile, notes: Path, tmp_path: Path
) -> None:
    """20 GB are free, and 512 MB of them stay so."""
    first = Run(card, "wait", str(notes), memory_mb=9_000, protected=True)
    second = Run(card, "wait", str(notes), memory_mb=9_000)
    wait_for(lambda: len(list_pids(notes)) == 2)
    with pytest.raises(SeatMemoryShort) as caught:
        card.run(make_call("wait", memory_mb=9_000), str(notes), StageContext())
    assert caught.value.details["need_mb"] == 9_000
    assert caught.value.details["free_mb"] == 20 * 1024 - 512 - 18_000
    assert sum(each["mb"] for each in read_book(tmp_path, "GPU-1")) == 18_000
    shown: Any = card.details()["stages"]
    assert sorted((each["memory_mb"], each["agent"], each["protected"]) for each in shown) == [
        (9_000, "ann", False), (9_000, "ann", True),
    ]  # fmt: skip
    (notes / "go").touch()
    assert first.wait().output == second.wait().output == "done"
    assert read_book(tmp_path, "GPU-1") == []


def test_memory_that_a_stage_has_taken_is_not_counted_twice(
    card: GpuProfile, driver: nvml.Driver, notes: Path
) -> None:
    """The driver's free memory lacks it already, and it is the child's child that holds it."""
    first = Run(card, "wait", str(notes), memory_mb=9_000)
    (pid,) = wait_for(lambda: list_pids(notes))
    driver.add_process("1", pid, 9_000 * 2**20)
    driver.set(**{"1.free": (20 * 1024 - 9_000) * 2**20})
    second = Run(card, "wait", str(notes), memory_mb=9_000)
    wait_for(lambda: len(list_pids(notes)) == 2)
    driver.remove_processes("1")
    (notes / "go").touch()
    assert first.wait().output == second.wait().output == "done"


def test_a_stage_on_a_card_is_ended_if_it_holds_more_than_it_reserved(
    card: GpuProfile, driver: nvml.Driver, notes: Path
) -> None:
    run = Run(card, "wait", str(notes), memory_mb=2_000)
    (pid,) = wait_for(lambda: list_pids(notes))
    driver.add_process("1", pid, 2_001 * 2**20)
    wait_for(lambda: not is_running(pid))
    driver.remove_processes("1")
    error = run.wait().error
    assert isinstance(error, StageMemoryExceeded)
    assert (error.details["memory_mb"], error.details["used_mb"]) == (2_000, 2_001)
    assert " 2600 " in str(error.fix), "more than it held when it was ended"
    assert (error.path, error.stage) == ("root", "wait")


def test_a_stage_on_the_cpu_is_ended_if_it_holds_more_than_it_reserved(
    cpu: GpuProfile, tmp_path: Path
) -> None:
    run = Run(cpu, "allocate", 600, backend="cpu")
    error = run.wait().error
    assert isinstance(error, StageMemoryExceeded)
    assert error.details["memory_mb"] == 400
    assert 400 < error.details["used_mb"] < 800
    assert "memory_mb" in str(error.fix)
    assert read_book(tmp_path) == []


def test_cancelling_kills_also_processes_that_left_their_parents(cpu: GpuProfile, notes: Path) -> None:
    run = Run(cpu, "leave_daemon", {"folder": str(notes), "seconds": 100})
    (daemon,) = wait_for(lambda: list_pids(notes))
    began = time.monotonic()
    run.context.cancel()
    assert isinstance(run.wait().error, JobCancelled)
    assert time.monotonic() - began < 5
    assert not is_running(daemon)
    assert run.context.usage.seconds > 0


def test_nothing_that_a_stage_started_outlives_it(cpu: GpuProfile, notes: Path) -> None:
    run = Run(cpu, "leave_daemon", {"folder": str(notes), "seconds": 0})
    assert run.wait().output == "left"
    (daemon,) = list_pids(notes)
    assert not is_running(daemon)


@pytest.mark.parametrize("how", ["stop", "stop itself", "ignore", "close", "comet"])
def test_cancelling_a_stage_that_works_against_it_kills_all_of_it(
    cpu: GpuProfile, notes: Path, tmp_path: Path, how: str
) -> None:
    run = Run(cpu, "attack", {"how": how, "folder": str(notes)})
    (daemon,) = wait_for(lambda: list_pids(notes))
    mark = read_variable(daemon, stage_child.MARK_VARIABLE)
    assert mark
    time.sleep(0.3)  # until it has begun
    began = time.monotonic()
    run.context.cancel()
    assert isinstance(run.wait().error, JobCancelled)
    assert time.monotonic() - began < 5
    assert not is_running(daemon)
    assert list_by_variable(stage_child.MARK_VARIABLE, mark) == []
    assert read_book(tmp_path) == []


def test_a_stage_that_kills_its_watching_process_has_died_with_all_that_it_started(
    cpu: GpuProfile, notes: Path, tmp_path: Path
) -> None:
    run = Run(cpu, "attack", {"how": "kill", "folder": str(notes)})
    (daemon,) = wait_for(lambda: list_pids(notes))
    assert isinstance(run.wait().error, ChildDied)
    assert not is_running(daemon)
    assert read_book(tmp_path) == []


def test_a_stage_that_stops_its_watching_process_ends_with_the_worker(notes: Path, tmp_path: Path) -> None:
    """The worker is killed: it closes nothing itself."""
    program = (
        "import sys\n"
        "from tests.integration.test_gpu_stages import StageContext, make_call, open_seat\n"
        "value = {'how': 'stop', 'folder': sys.argv[1]}\n"
        "open_seat().run(make_call('attack'), value, StageContext())"
    )
    path = os.pathsep.join(sys.path)
    with subprocess.Popen(
        [sys.executable, "-c", program, str(notes)], env={**os.environ, "PYTHONPATH": path}
    ) as worker:
        (daemon,) = wait_for(lambda: list_pids(notes), 60)
        time.sleep(0.3)  # until it has stopped it
        worker.kill()
    wait_for(lambda: not is_running(daemon))
    wait_for(lambda: not DeviceBook("cpu", tmp_path / "books").read())


@pytest.mark.parametrize("what", ["number", "bytes", "nested", "error"])
def test_garbage_in_the_pipe_that_says_nothing_is_passed_over(cpu: GpuProfile, what: str) -> None:
    run = Run(cpu, "write_garbage", what).wait()
    assert (run.output, run.error) == ("done", None)


@pytest.mark.parametrize("what", ["pieces", "usage", "long"])
def test_garbage_in_the_pipe_is_the_stages_fault(cpu: GpuProfile, what: str) -> None:
    run = Run(cpu, "write_garbage", what).wait()
    assert (run.output, type(run.error)) == (None, StageError)


def test_a_stage_that_reports_its_own_end_is_ended(cpu: GpuProfile) -> None:
    assert isinstance(Run(cpu, "write_garbage", "exit").wait().error, ChildDied)


def test_of_much_that_a_stage_prints_the_log_has_the_first_and_the_last(
    cpu: GpuProfile, capfd: pytest.CaptureFixture[str]
) -> None:
    assert Run(cpu, "print_much", 100).wait().output == "done"
    text = capfd.readouterr().err
    assert 2**20 < len(text) < 2**20 + 2**17
    assert text.startswith("first\n")
    assert text.endswith("last\n")


def test_what_a_stage_prints_before_it_dies_is_in_the_log(
    cpu: GpuProfile, capfd: pytest.CaptureFixture[str]
) -> None:
    assert isinstance(Run(cpu, "print_much", 0).wait().error, ChildDied)
    assert capfd.readouterr().err == "first\n"


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("nan", ValueNotJson),
        ("set", ValueNotJson),
        ("generator", ValueNotJson),
        ("huge", OutputTooLarge),
        ("interrupt", StageError),
        ("base", StageError),
        ("system exit", StageError),
        ("exit 0", ChildDied),
        ("segfault", ChildDied),
    ],
)
def test_odd_ends_of_a_stage_have_their_own_errors(cpu: GpuProfile, how: str, error: type[GridError]) -> None:
    assert type(Run(cpu, "end_oddly", how).wait().error) is error


def test_a_fork_that_returns_too_does_not_break_the_answer(cpu: GpuProfile) -> None:
    assert Run(cpu, "end_oddly", "fork").wait().output in ("one answer", 0)


def test_an_async_stage_runs(cpu: GpuProfile) -> None:
    assert Run(cpu, "be_async", [1]).wait().output == [1]


def test_a_deadline_ends_a_stage(cpu: GpuProfile, notes: Path) -> None:
    run = Run(cpu, "wait", str(notes))
    (pid,) = wait_for(lambda: list_pids(notes))
    run.context.deadline = time.monotonic() + 0.2
    assert isinstance(run.wait().error, StageTimeout)
    assert not is_running(pid)


def test_the_stages_own_errors_come_back_as_they_are(cpu: GpuProfile) -> None:
    error = Run(cpu, "fail", "x").wait().error
    assert type(error) is StageError
    assert error.reason == "ValueError: bad x"
    assert "in fail" in error.traceback
    assert isinstance(Run(cpu, "fail", "text").wait().error, WrongType)


@pytest.mark.parametrize(("how", "words"), [("die", "signal 9"), ("exit", "exit code 3")])
def test_the_death_of_its_process_counts_as_the_stages_doing(cpu: GpuProfile, how: str, words: str) -> None:
    error = Run(cpu, "fail", how).wait().error
    assert isinstance(error, ChildDied)
    assert words in error.message


def test_a_stage_that_the_machine_does_not_have_is_the_seats_fault(cpu: GpuProfile) -> None:
    call = make_call("look").model_copy(update={"implementation": "python:os:getpid"})
    with pytest.raises(SeatUnavailable) as caught:
        cpu.run(call, None, StageContext())
    assert "GRIDQ_STAGES" in str(caught.value.fix)


def test_closing_the_seat_ends_its_stages(notes: Path, tmp_path: Path) -> None:
    profile = open_seat()
    run = Run(profile, "wait", str(notes))
    (pid,) = wait_for(lambda: list_pids(notes))
    profile.close()
    assert isinstance(run.wait().error, SeatUnavailable)
    assert not is_running(pid)
    assert read_book(tmp_path) == []


def test_without_memory_in_its_effect_a_stage_reserves_all_of_the_seat(notes: Path, tmp_path: Path) -> None:
    profile = open_seat(memory_mb=3_000)
    run = Run(profile, "wait", str(notes), memory_mb=None)
    wait_for(lambda: list_pids(notes))
    assert [each["mb"] for each in read_book(tmp_path)] == [3_000]
    (notes / "go").touch()
    assert run.wait().output == "done"
    profile.close()


def ask(profile: GpuProfile) -> Json:
    effects = [Effect(effect="Llm", model="smollm2")]
    call = StageCall(id="s", name="s", path="$", implementation="llm:complete", effects=effects)
    return profile.run(call, {"prompt": "rain", "max_tokens": 1}, StageContext())


@NEEDS_SMALL_MODEL
def test_a_model_is_not_loaded_into_the_memory_of_a_stage_and_an_idle_one_makes_room(
    notes: Path, tmp_path: Path
) -> None:
    profile = open_seat(memory_mb=1_800, prompt_cache_mb=0, concurrency=1)
    try:
        assert ask(profile)
        assert "llm:any" in profile.warm_queues()
        run = Run(profile, "wait", str(notes), memory_mb=1_600, protected=True)
        (pid,) = wait_for(lambda: list_pids(notes))
        assert profile.warm_queues() == []
        assert profile.metrics()['model_evictions_total{cause="room"}'] == 1
        with pytest.raises(SeatMemoryShort):
            ask(profile)
        assert is_running(pid)
        assert not run.is_over
        (notes / "go").touch()
        assert run.wait().output == "done"
        assert ask(profile)
    finally:
        profile.close()


def test_a_process_that_does_not_start_is_the_seats_fault(
    cpu: GpuProfile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage_child, "MODULE", "no_such_module")
    assert isinstance(Run(cpu, "look", None).wait().error, SeatUnavailable)


def test_a_machine_without_room_for_a_process_is_the_seats_fault(
    cpu: GpuProfile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(stage_child.sys, "executable", "/no/such/program")
    assert isinstance(Run(cpu, "look", None).wait().error, SeatUnavailable)
    assert read_book(tmp_path) == []
