"""The outside witness, its stages, and clocks with an offset."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gridq.errors import ChildDied, JobCancelled, SeatUnavailable, StageError, StageTimeout
from gridq.profiles.profile import StageContext
from gridq.protocol.models import Json, Usage
from tests.chaos import clock, witness


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "witness"
    monkeypatch.setenv(witness.FILE, str(path))
    return path


def make_input(**orders: Json) -> Json:
    return {"items": 1, witness.ORDERS: {"id": "s0", **orders}}


def test_every_run_is_recorded_whatever_its_outcome(file: Path) -> None:
    assert witness.work(make_input(), StageContext(job="j", attempt=3)) == witness.answer(make_input())
    for orders, fault in (
        ({"fail": True}, StageError),
        ({"flaky": 1}, StageError),
        ({"seat": 1}, SeatUnavailable),
        ({"die": 1}, ChildDied),
    ):
        with pytest.raises(fault):
            witness.work(make_input(**orders), StageContext(job="j"))
        assert witness.work(make_input(flaky=1, seat=1, die=1), StageContext(job="j", attempt=2))
    runs = witness.read(file)
    assert [run.attempt for run in runs] == [3, *[1, 2] * 4]
    assert {(run.job, run.stage, run.pid) for run in runs} == {("j", "s0", os.getpid())}
    assert all(run.ended >= run.begun > 0 for run in runs)


def test_a_runs_usage_is_reported_with_its_tokens(file: Path) -> None:
    context = StageContext(job="j")
    witness.work(make_input(spend=500), context)
    assert context.usage == Usage(micro_dollars=500, tokens_in=50, tokens_out=25)


def test_unfinished_and_repeated_runs_are_distinguished(file: Path) -> None:
    file.write_text("+ j s0 1 7 0 10\n+ j s0 1 7 0 20\n- j s0 1 7 0 25\n+ j s1 1 7 500 30\n")
    assert [(run.stage, run.begun, run.ended, run.spend) for run in witness.read(file)] == [
        ("s0", 10, 0, 0),
        ("s0", 20, 25, 0),
        ("s1", 30, 0, 500),
    ]
    assert witness.read(file.with_name("none")) == []


def test_the_answer_depends_on_input_and_stage(file: Path) -> None:
    answers = [
        witness.answer({"a": a, witness.ORDERS: {"id": name}}) for a in (1, 2) for name in ("s0", "s1")
    ]
    assert len(set(map(str, answers))) == 4
    assert witness.answer(make_input(say=False)) is False
    assert len(str(witness.answer(make_input(size=70_000)))) > 70_000


def test_a_run_ends_on_cancel_and_at_its_deadline(file: Path) -> None:
    context = StageContext(job="j")
    context.cancel()
    with pytest.raises(JobCancelled):
        witness.work(make_input(ms=60_000), context)
    with pytest.raises(StageTimeout):
        witness.work(make_input(ms=60_000), StageContext(job="j", deadline=time.monotonic()))


def test_a_childs_clock_follows_the_offset_in_the_file(tmp_path: Path) -> None:
    hook, file = clock.install(tmp_path / "hook"), tmp_path / "clock"
    clock.shift(file, 5000)
    program = (
        "import time, sys, pathlib\n"
        "print(time.time(), time.time_ns(), flush=True)\n"
        "first = time.time()\n"
        "sys.stdin.readline()\n"
        "while time.time() > first - 5000: time.sleep(0.05)\n"
        "print('back')\n"
    )
    env = {**os.environ, "PYTHONPATH": hook, clock.FILE: str(file)}
    with subprocess.Popen(
        [sys.executable, "-c", program], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        seconds, nanos = child.stdout.readline().split()
        assert float(seconds) - time.time() == pytest.approx(5000, abs=60)
        assert int(nanos) / 1e9 == pytest.approx(float(seconds), abs=60)
        clock.shift(file, -5000)
        assert child.communicate("\n", timeout=30)[0] == "back\n"
