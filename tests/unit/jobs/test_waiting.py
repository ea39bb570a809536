"""Commands that wait for a job."""

from __future__ import annotations

from typing import Any

import pytest

from gridq.errors import JobNotFound, NotStreamed
from gridq.jobs.waiting import Piece, check_streamed, read_pieces, wait_for_end
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


def start_reading(timeout: float | None) -> Any:
    """Return the steps that read the pieces of a job which keeps them, after the first read."""
    steps = read_pieces(KEYS, "j", timeout)
    assert [command[0] for command in next(steps)] == ["HMGET", "HMGET", "HMGET", "EXISTS"]
    assert steps.send(([None, None], [b"ann", b"1"], [None, None], 0))[0][0] == "XREAD"
    return steps


@pytest.mark.parametrize(
    ("replies", "streamed"),
    [
        (([b"a", b"1"], [None, None], [None, None], 0), True),
        (([b"a", None], [None, None], [None, None], 0), False),
        (([None, None], [b"a", b"e"], [None, None], 1), False),
        (([None, None], [None, None], [b"a", b"e"], 1), False),
        (([None, None], [None, None], [b"a", b"1"], 1), True),
        (([None, None], [None, None], [b"a", None], 1), True),  # it ended under an older gridq
        (([None, None], [None, None], [b"a", None], 0), False),
        (([None, None], [None, None], [None, None], 0), True),  # there is no such job
    ],
)
def test_a_job_that_keeps_no_pieces_is_refused(replies: Any, streamed: bool) -> None:
    if streamed:
        check_streamed("j", list(replies))
        return
    with pytest.raises(NotStreamed) as caught:
        check_streamed("j", list(replies))
    assert caught.value.path == "j"


def test_pieces_come_in_order_and_end_with_the_job() -> None:
    steps = start_reading(0.0)
    two = [[b"s", [(b"1-0", {b"path": b"root", b"piece": b'"a"'}), (b"2-0", {b"end": b"done"})]]]
    assert steps.send(two) == Piece("root", "a")
    assert finish(steps, None) == 10.0


def test_a_stream_stops_after_its_timeout_without_pieces() -> None:
    steps = start_reading(-1.0)
    steps.send([])
    assert steps.send((None, 1, 0)) == []
    steps = start_reading(None)
    steps.send([])
    assert finish(steps, (DONE, 0, 0)) == 0.0
