"""The watchdog detects a stuck Celery consumer and works without it."""

from __future__ import annotations

import threading
from contextlib import ExitStack

import pytest

from gridq.process.watchdog import GAP_SECONDS, Watchdog


class Bench:
    """A watchdog whose clock, queue and threads stand in the test's hands."""

    def __init__(self, concurrency: int = 2, patience: float = 0.0) -> None:
        self.now = 100.0
        self.waits = True
        self.did: list[str] = []
        self.go = threading.Event()
        self.dog = Watchdog(
            concurrency,
            patience,
            message_waits=lambda: self.waits,
            work=self.work,
            reconnect=lambda: self.did.append("reconnect"),
            give_up=lambda: self.did.append("give up"),
            clock=lambda: self.now,
        )

    def work(self) -> None:
        self.did.append("work")
        self.go.wait(10)

    def check_for(self, seconds: int) -> Bench:
        for _ in range(seconds):
            self.now += 1
            self.dog.check()
        return self


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_messages_waiting_with_free_slots_start_work_without_celery(bench: Bench) -> None:
    assert bench.check_for(3).did == []
    assert bench.check_for(2).did == ["reconnect", "work", "work"]
    assert bench.check_for(3).did == ["reconnect", "work", "work"], (
        "as many threads as slots, and one new start"
    )
    bench.go.set()


def test_delivered_messages_end_the_work_without_celery(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.check_for(6)
    assert bench.dog.bypasses_celery
    with bench.dog.handling_message():
        pass
    bench.check_for(1)
    bench.go.set()
    assert not bench.dog.bypasses_celery
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2
    assert messages[-1] == "Celery delivers messages again"


def test_an_empty_queue_is_no_fault(bench: Bench) -> None:
    bench.waits = False
    assert bench.check_for(100).did == []


def test_a_message_that_waits_for_a_busy_slot_is_no_fault() -> None:
    bench = Bench(concurrency=2)
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(bench.dog.handling_message())
        assert bench.check_for(100).did == []


def test_a_stream_of_messages_is_no_fault(bench: Bench) -> None:
    for _ in range(30):
        with bench.dog.handling_message():
            pass
        bench.check_for(2)
    assert bench.did == []


def test_a_gap_or_an_absent_server_restarts_the_check(bench: Bench) -> None:
    bench.check_for(3)
    bench.now += GAP_SECONDS + 60
    assert bench.check_for(3).did == []


def test_the_watchdog_gives_up_once() -> None:
    bench = Bench(concurrency=1, patience=10)
    bench.check_for(12)
    assert bench.did == ["reconnect", "work"]
    bench.check_for(20)
    bench.go.set()
    assert bench.did == ["reconnect", "work", "give up"]


def test_failed_work_is_restarted(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(concurrency=1)
    begun = []

    def fail() -> None:
        begun.append(threading.current_thread())
        raise ValueError("no")

    bench.dog._work = fail
    bench.check_for(5)
    begun[0].join(10)
    bench.check_for(1)
    begun[1].join(10)
    assert "work without Celery: no" in caplog.text
