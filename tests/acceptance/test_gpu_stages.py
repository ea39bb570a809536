"""Python stages on the GPUs of a whole grid: real workers, on this machine's CPU and on the cards of a
stand-in for NVIDIA's library.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gridq.cli.commands.explain import explain_graph
from gridq.client import BrokerClient
from gridq.config.machine_id import get_machine_id
from gridq.errors import (
    AgentGpuSecondsExceeded,
    DemandUnmet,
    GridError,
    InvalidField,
    JobCancelled,
    StageTimeout,
)
from gridq.limits.accounts import read_accounts
from gridq.limits.ledger import read_entries
from gridq.limits.ledger_verification import verify
from gridq.protocol.models import Json
from gridq.protocol.states import JobState
from gridq.views.audit import find_breaches
from tests.acceptance.grids import WholeGrid, whole
from tests.builders import stage
from tests.fakes import nvml
from tests.processes import is_running
from tests.waiting import wait_for
from workers.owner import switch
from workers.profiles.gpu.memory.device_book import BOOKS_VARIABLE, DeviceBook
from workers.supervisor.embedded_server import EmbeddedServer

STAGES = """
import os, pathlib, signal, subprocess, sys, time
from gridq import Gpu, stage

SLEEP = (
    "import os, pathlib, sys, time; "
    "pathlib.Path(sys.argv[1], f'child{os.getpid()}').touch(); time.sleep(99)"
)

def wait(value, context):
    folder = pathlib.Path(value["folder"])
    subprocess.Popen([sys.executable, "-c", SLEEP, str(folder)], start_new_session=True)
    (folder / str(os.getpid())).touch()
    while not (folder / "go").exists():
        time.sleep(0.02)
    return {"devices": os.environ["CUDA_VISIBLE_DEVICES"], "attempt": context.attempt}

@stage(effects=[Gpu(memory_mb=9000, seconds=20)], name="on_card")
def on_card(value, context):
    return wait(value, context)

@stage(effects=[Gpu(memory_mb=300, seconds=400, backend="cpu")])
def long_on_cpu(value, context):
    return wait(value, context)

@stage(effects=[Gpu(memory_mb=300, seconds=1, backend="cpu")])
def on_cpu(value, context):
    return wait(value, context)

@stage(effects=[Gpu(memory_mb=300, seconds=1, backend="cpu", protected=True)])
def train(value, context):
    return wait(value, context)

@stage(effects=[Gpu(memory_mb=300, seconds=1, backend="cpu")], timeout=8)
def end_badly(value):
    folder = pathlib.Path(value["folder"])
    (folder / str(os.getpid())).touch()
    if value["how"] == "die":
        time.sleep(0.5)
        os._exit(0)
    if value["how"] == "stop":
        os.kill(os.getppid(), signal.SIGSTOP)
    time.sleep(1.5 if value["how"] == "long" else 99)
    return value["how"]

@stage(effects=[{"effect": "Gpu", "memory_mb": {"$config": "memory_mb", "default": 200}, "backend": "cpu"}])
def sized(value):
    return "ran"
"""

SEATS = """
[local]
concurrency = 1
[gpu]
concurrency = 2
prompt_cache_mb = 0
budgets = [{gpu_seconds = 600, per = "day"}]
"""


@pytest.fixture(scope="module")
def grid(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeGrid]:
    """The seats `cpu` and `gpu1`, of which each stage of a card fits twice, and a router with quotas."""
    folder = tmp_path_factory.mktemp("grid")
    driver = nvml.Driver(folder / "nvml")
    driver.add_card()
    driver.add_card()
    quotas = folder / "quotas.toml"
    quotas.write_text('[agents.small]\nbudgets = [{gpu_seconds = 10, per = "day"}]\n')
    environment = driver.environment()
    names = ("LD_LIBRARY_PATH", "GRIDQ_STUB_NVML")
    env = {
        **{name: environment[name] for name in names},
        "GRIDQ_QUOTAS": str(quotas),
        "GRIDQ_SKIP_ENGINES": "1",
        "GRIDQ_HEARTBEAT": "1",
        BOOKS_VARIABLE: str(folder / "books"),
    }
    seats = {"local": 1, "cpu": 2, "gpu1": 2}
    with whole(
        folder, server.url, seats, stages=STAGES, env=env, table=SEATS, profiles=("gpu",), drain=2,
        retry_backoff=0.1, max_attempts=2,
    ) as made:  # fmt: skip
        wait_for(lambda: seats.keys() <= {seat.seat.partition(".")[2] for seat in made.client.seats()})
        wait_for(lambda: read_accounts(made.client.redis, made.client.keys, "UTC").active_limits)
        yield made
        found = verify(made.client.redis, made.client.keys)
        assert (found.differences, found.notes) == ((), ())
        assert not find_breaches(made.client.redis, made.client.keys)


@pytest.fixture
def notes(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "notes"
    folder.mkdir()
    yield folder
    (folder / "go").touch()  # nothing waits for a test that failed


def submit(grid: WholeGrid, name: str, notes: Path, **options: Json) -> str:
    return grid.client.submit({"root": stage(name)}, {"folder": str(notes)}, **options)


def await_pids(notes: Path, count: int = 2) -> list[int]:
    """Wait for so many processes of stages, each of which has started another."""
    return [
        int(name.removeprefix("child"))
        for name in wait_for(lambda: os.listdir(notes), true=lambda found: len(found) >= count, seconds=60)
        if name != "go"
    ]


def finish(grid: WholeGrid, notes: Path, job: str) -> Json:
    (notes / "go").touch()
    return grid.client.result(job, 60)


def await_gone(pids: list[int]) -> None:
    wait_for(lambda: not any(map(is_running, pids)))


def test_a_stage_runs_on_its_card_and_is_accounted_by_device(grid: WholeGrid, notes: Path) -> None:
    job = submit(grid, "on_card", notes, agent="ann")
    pids = await_pids(notes)
    time.sleep(1)
    seats = wait_for(
        lambda: {seat.seat.split(".")[1]: seat for seat in grid.client.seats()},
        true=lambda found: found["gpu1"].details.get("stages"),
    )
    (shown,) = seats["gpu1"].details["stages"]
    assert (shown["name"], shown["memory_mb"], shown["agent"]) == ("on_card", 9000, "ann")
    assert (seats["gpu1"].meters[0].reserved, seats["gpu1"].meters[0].limit) == (20_000, 600_000)
    output = finish(grid, notes, job)
    assert output == {"devices": "GPU-1", "attempt": 1}
    await_gone(pids)
    (row,) = grid.client.rows(job)
    assert row.gpu_seconds >= 1
    assert row.worker.startswith("gpu1@")
    assert row.micro_dollars == 0
    entries = read_entries(grid.client.redis, grid.client.keys)
    (entry,) = (each for each in entries if each.job == job and each.charged)
    assert entry.gpu_ms == pytest.approx(row.gpu_seconds * 1000, abs=1)
    assert entry.seat.endswith(".gpu1")
    (meter,) = next(seat for seat in grid.client.seats() if seat.seat.endswith("gpu1")).meters
    assert (meter.used, meter.reserved) == (entry.gpu_ms, 0)


def test_what_no_seat_meets_is_refused_with_what_each_lacks(grid: WholeGrid) -> None:
    big = {"root": stage("sized", memory_mb=10**9)}
    with pytest.raises(DemandUnmet) as caught:
        grid.client.submit(big, None)
    assert "cpu" in str(caught.value.reason)
    assert isinstance(grid.client, BrokerClient)
    text = '{"root": {"op": "Stage", "id": "sized", "config": {"memory_mb": 1000000000}}}'
    (step,) = explain_graph(grid.client, text, grid.config)["steps"]
    assert step["queue"] == "gpu:cpu"
    assert not step["seats"]
    assert "needs 1000000000 MB" in step["no_seat_reason"]
    with pytest.raises(InvalidField):
        grid.client.submit({"root": stage("sized", memory_mb="much")}, None)
    assert grid.client.run({"root": stage("sized")}, None, 60) == "ran"


def test_a_cancel_kills_the_stage_and_what_it_started(grid: WholeGrid, notes: Path) -> None:
    job = submit(grid, "on_cpu", notes)
    pids = await_pids(notes)
    began = time.monotonic()
    assert grid.client.cancel(job)
    await_gone(pids)
    assert time.monotonic() - began < 10
    assert grid.client.status(job) is JobState.CANCELLED


def test_a_killed_worker_takes_its_stages_with_it_and_they_run_again(grid: WholeGrid, notes: Path) -> None:
    job = submit(grid, "on_cpu", notes)
    pids = await_pids(notes)
    worker = grid.home.children["cpu"]
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    await_gone(pids)
    books = DeviceBook("cpu", grid.config.home.parent / "books")
    wait_for(lambda: books.read() == [])
    grid.home.spawn("cpu")
    assert finish(grid, notes, job) == {"devices": "", "attempt": 2}
    (row,) = grid.client.rows(job)
    assert row.losses == 1


def test_the_owners_pause_waits_for_a_protected_stage_alone(
    grid: WholeGrid, notes: Path, tmp_path: Path
) -> None:
    others = tmp_path / "others"
    others.mkdir()
    other = submit(grid, "on_cpu", others)
    other_pids = await_pids(others)
    protected = submit(grid, "train", notes)
    pids = await_pids(notes)
    machine = get_machine_id(grid.config.home)
    switch.pause(grid.config.home, "cpu")
    try:
        await_gone(other_pids)
        wait_for(
            lambda: next(each for each in grid.client.seats() if each.seat == f"{machine}.cpu").state,
            true=lambda state: state == "paused",
        )
        assert all(map(is_running, pids))
        assert finish(grid, notes, protected) == {"devices": "", "attempt": 1}
    finally:
        switch.resume(grid.config.home, "cpu")
    assert finish(grid, others, other)["attempt"] == 2


def test_a_protected_stage_shields_its_device(grid: WholeGrid, notes: Path, tmp_path: Path) -> None:
    """What comes while it runs waits, or goes elsewhere, though the seat has a slot and memory left."""
    others = tmp_path / "others"
    others.mkdir()
    seat = f"{get_machine_id(grid.config.home)}.cpu"
    protected = submit(grid, "train", notes)
    await_pids(notes)
    shielded = wait_for(
        lambda: next(each for each in grid.client.seats() if each.seat == seat), true=lambda each: each.reason
    )
    assert (shielded.state, shielded.concurrency) == ("ready", 1)
    other = submit(grid, "on_cpu", others)
    wait_for(lambda: "busy" in grid.client.waits_for(other))
    time.sleep(1.5)
    assert list(others.iterdir()) == []
    assert finish(grid, notes, protected)["attempt"] == 1
    assert finish(grid, others, other)["attempt"] == 1
    wait_for(lambda: next(each for each in grid.client.seats() if each.seat == seat).concurrency == 2)


def test_gpu_seconds_of_a_seat_are_reserved_and_settled(grid: WholeGrid, notes: Path) -> None:
    """Each stage declares more than half of what the seat may be used for in a day, and takes seconds."""
    first = submit(grid, "long_on_cpu", notes)
    await_pids(notes)
    second = submit(grid, "long_on_cpu", notes)
    waits = wait_for(lambda: grid.client.waits_for(second), true=lambda text: "GPU seconds" in text)
    assert "GPU seconds left of 600 GPU seconds a day" in waits
    for job in (first, second):
        finish(grid, notes, job)
        (row,) = grid.client.rows(job)
        assert 0 < row.gpu_seconds < 60


def test_gpu_seconds_of_an_agent_are_checked_at_admission(grid: WholeGrid, notes: Path) -> None:
    (notes / "go").touch()
    grid.client.result(submit(grid, "on_cpu", notes, agent="small"), 60)  # it declares a second
    with pytest.raises(AgentGpuSecondsExceeded) as caught:  # it declares more than is left
        submit(grid, "on_card", notes, agent="small")
    assert caught.value.code == "quota.agent_gpu_seconds"
    assert caught.value.details["limit"] == 10_000
    assert "GPU seconds" in str(caught.value.reason)


@pytest.mark.parametrize(
    ("how", "error", "attempts"),
    [("long", None, 1), ("timeout", StageTimeout, 1), ("stop", StageTimeout, 1), ("die", JobCancelled, 2)],
)
def test_however_a_stage_ends_its_seconds_are_settled_and_its_memory_is_free(
    grid: WholeGrid, notes: Path, how: str, error: type[GridError] | None, attempts: int
) -> None:
    """It declares one second, and takes more or less."""
    job = grid.client.submit({"root": stage("end_badly")}, {"folder": str(notes), "how": how}, agent="eve")
    if how == "die":  # it is quarantined, and its job goes on
        wait_for(lambda: len(grid.client.rows(job)), true=lambda count: count == attempts, seconds=60)
        grid.client.cancel(job)
    if error is None:
        assert grid.client.result(job, 60) == how
    else:
        with pytest.raises(error):
            grid.client.result(job, 60)
    pids = [int(name) for name in os.listdir(notes)]
    assert len(pids) == attempts
    await_gone(pids)
    seats = {seat.seat.partition(".")[2]: seat for seat in grid.client.seats()}
    assert seats["cpu"].meters[0].reserved == 0
    entries = read_entries(grid.client.redis, grid.client.keys)
    charged = [each.gpu_ms for each in entries if each.job == job and each.charged]
    rows = grid.client.rows(job)
    assert sum(charged) == pytest.approx(sum(row.gpu_seconds for row in rows) * 1000, abs=2)
    assert sum(charged) > {"long": 1_500, "die": 500}.get(how, 7_500)
    assert DeviceBook("cpu", grid.config.home.parent / "books").read() == []
