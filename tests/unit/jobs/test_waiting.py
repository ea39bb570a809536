"""How a job is waited for, command by command."""

from __future__ import annotations

from typing import Any

import pytest

from gridq.errors import JobNotFound
from gridq.jobs.waiting import Piece, read_pieces, wait_for_end
from gridq.protocol.states import JobState
from gridq.store.keys import Keys

KEYS = Keys("p:")
DONE = b"done\n7"


def ended(steps: Any, reply: Any) -> Any:
    with pytest.raises(StopIteration) as stop:
        steps.send(reply)
    return stop.value.value


def test_an_end_that_is_there_takes_one_round_trip() -> None:
    steps = wait_for_end(KEYS, "j", None)
    assert [command[0] for command in next(steps)] == ["LINDEX", "EXISTS", "EXISTS"]
    end = ended(steps, (DONE, 0, 0))
    assert (end.state, end.payload) == (JobState.DONE, b"7")


def test_an_end_that_comes_takes_two() -> None:
    steps = wait_for_end(KEYS, "j", None)
    next(steps)
    [[name, source, target, *_, seconds]] = steps.send((None, 1, 0))
    assert (name, source, target, seconds) == ("BLMOVE", "p:.result:j", "p:.result:j", 5.0)
    assert ended(steps, DONE).payload == b"7"


def test_it_is_looked_at_again_until_the_time_is_over() -> None:
    steps = wait_for_end(KEYS, "j", 0.0)
    next(steps)
    assert ended(steps, (None, 0, 1)) is None
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
    assert ended(steps, None) == 10.0


def test_without_a_piece_for_too_long_no_command_is_left() -> None:
    steps = read_pieces(KEYS, "j", -1.0)
    next(steps)
    steps.send([])
    assert steps.send((None, 1, 0)) == []
    steps = read_pieces(KEYS, "j", None)
    next(steps)
    steps.send([])
    assert ended(steps, (DONE, 0, 0)) == 0.0
