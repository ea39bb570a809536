"""Commands that wait for a job."""

from __future__ import annotations

from typing import Any

import pytest

from gridq.errors import JobNotFound
from gridq.jobs.waiting import Piece, read_pieces, wait_for_end
from gridq.protocol.states import JobState
from gridq.store.keys import Keys

KEYS = Keys("p:")
DONE = b"done\n7"


def finish(steps: Any, reply: Any) -> Any:
    with pytest.raises(StopIteration) as stop:
        steps.send(reply)
    return stop.value.value


def test_waiting_for_an_ended_job_takes_one_round_trip() -> None:
    steps = wait_for_end(KEYS, "j", None)
    assert [command[0] for command in next(steps)] == ["LINDEX", "EXISTS", "EXISTS"]
    end = finish(steps, (DONE, 0, 0))
    assert (end.state, end.payload) == (JobState.DONE, b"7")


def test_waiting_for_a_running_job_takes_two_round_trips() -> None:
    steps = wait_for_end(KEYS, "j", None)
    next(steps)
    [[name, source, target, *_, seconds]] = steps.send((None, 1, 0))
    assert (name, source, target, seconds) == ("BLMOVE", "p:.result:j", "p:.result:j", 5.0)
    assert finish(steps, DONE).payload == b"7"


def test_waiting_polls_until_the_timeout() -> None:
    steps = wait_for_end(KEYS, "j", 0.0)
    next(steps)
    assert finish(steps, (None, 0, 1)) is None
    steps = wait_for_end(KEYS, "j", 60)
    next(steps)
    steps.send((None, 1, 0))
    assert len(steps.send(None)) == 3
    with pytest.raises(JobNotFound):
        steps.send((None, 0, 0))


def test_pieces_come_in_order_and_end_with_the_job() -> None:
    steps = read_pieces(KEYS, "j", 0.0)
    assert next(steps)[0][0] == "XREAD"
    two = [[b"s", [(b"1-0", {b"path": b"root", b"piece": b'"a"'}), (b"2-0", {b"end": b"done"})]]]
    assert steps.send(two) == Piece("root", "a")
    assert finish(steps, None) == 10.0


def test_a_stream_stops_after_its_timeout_without_pieces() -> None:
    steps = read_pieces(KEYS, "j", -1.0)
    next(steps)
    steps.send([])
    assert steps.send((None, 1, 0)) == []
    steps = read_pieces(KEYS, "j", None)
    next(steps)
    steps.send([])
    assert finish(steps, (DONE, 0, 0)) == 0.0
