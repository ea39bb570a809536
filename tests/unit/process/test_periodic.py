"""An act that is done again and again, whatever it raises."""

from __future__ import annotations

import logging
import threading

import pytest
from redis.exceptions import ConnectionError as Away

from gridq.process.periodic import PeriodicThread


def test_a_periodic_thread_continues_after_an_error_and_logs_it(caplog: pytest.LogCaptureFixture) -> None:
    faults = iter([Away("the server is away"), KeyError("ours")])
    done = threading.Event()

    def act() -> None:
        fault = next(faults, None)
        if fault is not None:
            raise fault
        done.set()

    repeat = PeriodicThread("a test", 0.01, act)
    with caplog.at_level(logging.WARNING):
        repeat.start()
        assert done.wait(10)
        repeat.stop()
    assert "a test: the server is away" in caplog.text
    assert "KeyError" in caplog.text
    assert repeat.stopped


def test_a_periodic_thread_can_be_stopped_from_within_and_before_its_start() -> None:
    PeriodicThread("never", 60, lambda: None).stop()
    ended = threading.Event()

    def act() -> None:
        repeat.stop()
        ended.set()

    repeat = PeriodicThread("once", 0.01, act)
    repeat.start()
    assert ended.wait(10)
