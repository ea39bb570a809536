"""Runs of programs end by themselves, on cancel, at their deadline and with their worker."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gridq.errors import GridError, JobCancelled, SeatUnavailable, StageTimeout
from gridq.profiles.profile import StageContext
from tests.fakes.programs import FakePrograms
from tests.processes import is_running
from tests.program_seats import ask, failing, seat
from tests.waiting import wait_for

pytestmark = pytest.mark.usefixtures("on_path")

CALL = """
import sys
from gridq.profiles.profile import StageContext
from workers.profiles.llm.programs.backend import ProgramBackend
from workers.profiles.llm.programs.seat_table import make_login, parse_seat
table = {"name": "mine", "cli": "claude", "program": sys.argv[1], "models": [{"name": "stubborn"}]}
body = {"model": "stubborn", "messages": [{"role": "user", "content": "so it goes"}]}
ProgramBackend(make_login(parse_seat(table, "llm"))).post("chat/completions", body, StageContext())
"""


def test_children_of_a_program_end_with_it(fakes: FakePrograms):
    answer = ask(seat("claude"), "claude", "straggler")
    assert answer["choices"][0]["message"]["content"] == "so it goes on "
    child = next(call["child"] for call in reversed(fakes.calls("claude")) if "child" in call)
    wait_for(lambda: not is_running(child))


@pytest.mark.parametrize("model", ["slow", "stubborn", "detached", "silent"])
def test_a_cancelled_stage_kills_all_of_it(model: str, fakes: FakePrograms):
    profile = seat("claude")
    before = len(fakes.calls("claude"))
    context = StageContext(emit=lambda piece: None)
    failed: list[GridError] = []

    def run() -> None:
        try:
            ask(profile, "claude", model, context)
        except GridError as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    wanted = 2 if model in ("stubborn", "detached") else 1
    wait_for(lambda: len(fakes.calls("claude")) >= before + wanted)
    context.cancel()
    thread.join(10)
    assert not thread.is_alive()
    assert isinstance(failed[0], JobCancelled)
    for call in fakes.calls("claude")[before:]:
        for pid in filter(None, (call.get("pid"), call.get("child"))):
            wait_for(lambda pid=pid: not is_running(pid))


def test_a_program_is_killed_at_the_stage_deadline(fakes: FakePrograms):
    with pytest.raises(StageTimeout):
        ask(seat("claude"), "claude", "slow", StageContext(deadline=time.monotonic() + 0.5))
    assert not is_running(fakes.calls("claude")[-1]["pid"])


def test_a_program_that_is_silent_for_too_long_is_ended(fakes: FakePrograms):
    error = failing(seat("claude", silence=0.5), "claude", "silent")
    assert type(error) is SeatUnavailable
    assert "wrote nothing" in error.message
    assert not is_running(fakes.calls("claude")[-1]["pid"])


def test_calls_on_one_login_run_one_after_the_other(
    fakes: FakePrograms, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("workers.profiles.llm.programs.login_lock.WAIT_SECONDS", 0.2)
    one, other = seat("claude"), seat("claude")
    context = StageContext()
    before = len(fakes.calls("claude"))

    def first() -> None:
        with pytest.raises(JobCancelled):
            ask(one, "claude", "slow", context)

    thread = threading.Thread(target=first)
    thread.start()
    wait_for(lambda: len(fakes.calls("claude")) > before)
    error = failing(other, "claude", "echo")
    assert type(error) is SeatUnavailable
    assert "using the seat's login" in error.message
    context.cancel()
    thread.join(10)
    assert ask(other, "claude", "echo")


def test_a_program_does_not_outlive_its_killed_worker(fakes: FakePrograms):
    before = len(fakes.calls("claude"))
    program = shutil.which("claude")
    worker = subprocess.Popen([sys.executable, "-c", CALL, program], cwd=Path(__file__).parents[6])
    calls = wait_for(lambda: fakes.calls("claude")[before:], true=lambda calls: len(calls) == 2)
    head, child = calls[0]["pid"], calls[1]["child"]
    worker.kill()
    worker.wait()
    wait_for(lambda: not is_running(head))
    assert is_running(child)  # it ends with nobody; the next call on the login ends it
    assert ask(seat("claude"), "claude", "echo")
    wait_for(lambda: not is_running(child))
