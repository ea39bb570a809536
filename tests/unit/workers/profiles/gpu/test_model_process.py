"""A model's process: a child that misbehaves, and what it finds out about the model's chat template."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from gridq.errors import ChildDied, JobCancelled, SeatUnavailable, StageError, StageTimeout
from gridq.profiles.profile import StageContext
from gridq.protocol.models import Json
from tests.processes import is_running
from tests.waiting import wait_for
from workers.profiles.gpu import model_process
from workers.profiles.gpu.model_process import LoadOrder, ModelProcess

ORDER = LoadOrder("tiny", "xllamacpp", Path("tiny.gguf"), 512, 1, 1, 0, False, {})


class Scripted(ModelProcess):
    """A process whose requests fail one after another with `errors`, None for an answer."""

    def __init__(self, *errors: StageError | None) -> None:
        super().__init__(ORDER)
        self.errors = list(errors)

    def request(
        self, endpoint: str, body: dict[str, Json], context: StageContext
    ) -> Generator[dict[str, Json]]:
        error = self.errors.pop(0)
        if error is not None:
            raise error
        yield {"usage": {"prompt_tokens": 9 if body["tools"] else 3}}


@pytest.fixture(autouse=True)
def _scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_process.tempfile, "tempdir", str(tmp_path))


def test_what_a_template_reads_is_asked_once() -> None:
    process = Scripted(None, None)
    assert process.reads_field("tools", StageContext())
    assert process.reads_field("tools", StageContext())


def test_a_field_that_the_engine_refuses_is_not_read() -> None:
    process = Scripted(None, StageError("no tools here"))
    assert not process.reads_field("tools", StageContext())
    assert not process.reads_field("tools", StageContext())


def test_a_stage_without_time_left_says_nothing_about_the_template() -> None:
    process = Scripted(None, StageTimeout("too late"), None, None)
    with pytest.raises(StageTimeout):
        process.reads_field("tools", StageContext())
    assert process.reads_field("tools", StageContext())


LOADED = """
import sys
sys.stdin.readline()
print('{"loaded": true}', flush=True)
"""


@pytest.fixture
def run_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModelProcess]]:
    """Start a process whose child is a script in place of an engine."""
    started: list[ModelProcess] = []
    python = sys.executable

    def run(script: str) -> ModelProcess:
        child, program = tmp_path / "child.py", tmp_path / "python"
        child.write_text(LOADED + script)
        program.write_text(f'#!/bin/sh\nexec "{python}" "{child}"\n')
        program.chmod(0o700)
        monkeypatch.setattr(model_process.sys, "executable", str(program))
        process = ModelProcess(ORDER)
        started.append(process)
        process.start(StageContext())
        return process

    yield run
    for process in started:
        process.kill()


def test_a_child_that_is_killed_while_it_writes_is_reported(
    run_child: Callable[[str], ModelProcess],
) -> None:
    """Of a long line, such as vectors, a part may have been written."""
    process = run_child(
        'sys.stdin.readline(); sys.stdout.write(\'{"id": 1, "chu\'); sys.stdout.flush()\n'
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    )
    with pytest.raises(ChildDied):
        list(process.request("embeddings", {}, StageContext()))
    assert not process.is_alive


def test_a_child_that_reads_nothing_holds_up_neither_a_cancel_nor_its_end(
    run_child: Callable[[str], ModelProcess],
) -> None:
    """The request is longer than what a pipe takes."""
    process = run_child("import time; time.sleep(1000)")
    context = StageContext()
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            list(process.request("chat/completions", {"prompt": "x" * 1_000_000}, context))
        except BaseException as exc:
            errors.append(exc)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    wait_for(lambda: process._replies)
    assert process.pid is not None
    context.cancel()
    thread.join(20)
    assert [type(error) for error in errors] == [JobCancelled]
    wait_for(lambda: not is_running(process.pid or 0))


def test_a_stopped_child_that_holds_a_request_can_be_closed(
    run_child: Callable[[str], ModelProcess],
) -> None:
    process = run_child("import time; time.sleep(1000)")
    assert process.pid is not None
    os.kill(process.pid, signal.SIGSTOP)
    process._send({"prompt": "x" * 1_000_000})
    closing = threading.Thread(target=process.close, daemon=True)
    closing.start()
    closing.join(20)
    assert not closing.is_alive()
    assert not is_running(process.pid)


def test_a_child_that_hangs_is_ended(
    run_child: Callable[[str], ModelProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_process, "SILENCE_SECONDS", 0.5)
    process = run_child("import time; time.sleep(1000)")
    assert process.pid is not None
    os.kill(process.pid, signal.SIGSTOP)
    with pytest.raises(SeatUnavailable) as caught:
        list(process.request("chat/completions", {}, StageContext()))
    assert caught.value.details["model"] == "tiny"
    assert not process.is_alive
    assert not is_running(process.pid)


def test_a_child_that_computes_for_long_is_waited_for(
    run_child: Callable[[str], ModelProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it does for a long prompt on a CPU."""
    monkeypatch.setattr(model_process, "SILENCE_SECONDS", 0.5)
    process = run_child(
        "sys.stdin.readline()\nimport time\n"
        "while time.process_time() < 1: pass\n"
        'print(\'{"id": 1, "chunk": {"choices": []}}\\n{"id": 1, "done": true}\', flush=True)\n'
        "time.sleep(1000)"
    )
    assert list(process.request("chat/completions", {}, StageContext())) == [{"choices": []}]
