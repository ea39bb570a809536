"""How a worker runs wake-ups: Celery's real pool, with messages that nobody sent."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from celery.concurrency.thread import TaskPool
from celery.worker import state

from gridq.app import app
from gridq.execution.tasks import RunStage, begin_wake_up, deliver, run_stage
from gridq.messaging import transport
from tests.waiting import wait_for


class Worker:
    """A worker with two slots, and what it acknowledged."""

    def __init__(self) -> None:
        self.pool = TaskPool(2)
        self.acknowledged: list[str] = []
        consumer = SimpleNamespace(pool=self.pool, hostname="seat@machine", connection_errors=(OSError,))
        self.handle = deliver(run_stage, app, consumer)

    def receive(self, name: str) -> None:
        message = SimpleNamespace(
            headers={"id": name},
            delivery_info={"routing_key": "llm:any"},
            begun=transport.Begun(begin_wake_up()),
        )
        self.handle(message, None, lambda *_: self.acknowledged.append(name), None, [])


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker()
    worker.pool.start()
    yield worker
    worker.pool.stop()


def answer_by(monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    monkeypatch.setattr(RunStage, "answer", staticmethod(answer))


def test_a_wake_up_is_acknowledged_once_its_slot_is_free(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    answer_by(monkeypatch, lambda: go_on.wait)
    counted = state.total_count["gridq.run_stage"]
    worker.receive("one")
    wait_for(lambda: len(state.active_requests) == 1)
    [active] = state.active_requests
    shown = active.info(safe=True)
    assert (shown["id"], shown["name"], shown["acknowledged"]) == ("one", "gridq.run_stage", False)
    assert worker.acknowledged == []
    go_on.set()
    wait_for(lambda: worker.acknowledged == ["one"])
    assert not state.active_requests
    assert not state.requests
    assert state.total_count["gridq.run_stage"] == counted + 1


@pytest.mark.parametrize("at_once", [True, False])
def test_a_wake_up_that_fails_is_acknowledged_and_the_next_one_runs(
    worker: Worker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, at_once: bool
) -> None:
    def fail() -> None:
        raise RuntimeError("by the test")

    answer_by(monkeypatch, fail if at_once else lambda: fail)
    worker.receive("one")
    worker.receive("two")
    wait_for(lambda: sorted(worker.acknowledged) == ["one", "two"])
    assert "a wake-up failed" in caplog.text
    assert not state.active_requests


def test_a_wake_up_by_another_transport_runs_too(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = threading.Event()
    answer_by(monkeypatch, lambda: ran.set)
    message = SimpleNamespace(headers={"id": "one"}, delivery_info={})
    worker.handle(message, None, lambda *_: None, None, [])
    assert ran.wait(10)


def test_a_foreign_message_without_an_id_is_acknowledged_too(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would take one of the places for unacknowledged messages until the worker ends."""
    ran = threading.Event()
    answer_by(monkeypatch, lambda: ran.set)
    message = SimpleNamespace(headers={}, delivery_info={}, begun=transport.Begun(begin_wake_up()))
    worker.handle(message, None, lambda *_: worker.acknowledged.append("foreign"), None, [])
    assert ran.wait(10)
    wait_for(lambda: worker.acknowledged == ["foreign"])


def test_a_process_without_a_seat_only_acknowledges(worker: Worker) -> None:
    worker.receive("one")
    wait_for(lambda: worker.acknowledged == ["one"])
