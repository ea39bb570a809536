"""emit.lua: pieces of an answer, from the attempt that counts."""

from __future__ import annotations

import pytest

from gridq.graph.plan import Scope
from gridq.protocol.states import JobState
from gridq.store.replies import Claim
from tests.unit.store.plans import Grid, one, plan, step

pytestmark = pytest.mark.usefixtures("key_hygiene")


def _pieces(grid: Grid, job: str) -> list[bytes]:
    return [entry[b"piece"] for _, entry in grid.client.xrange(grid.keys("stream", job)) if b"piece" in entry]


def _lapsed(grid: Grid) -> Claim:
    """An attempt of a streamed job whose lease has lapsed; m.b may take the stage."""
    grid.seat()
    grid.seat("m.b")
    grid.job(one(), "j1", stream=True)
    claim = grid.take()
    grid.lapse(claim)
    return claim


def test_pieces_stand_in_order(grid: Grid) -> None:
    grid.seat()
    grid.job(one(), "j1", stream=True)
    claim = grid.take()
    assert grid.scripts.emit(claim.lease, "root", ['"a"', '"b"'], 0)
    assert grid.scripts.emit(claim.lease, "root", ['"c"'], 2)
    assert _pieces(grid, "j1") == [b'"a"', b'"b"', b'"c"']


def test_a_fenced_attempt_adds_nothing(grid: Grid) -> None:
    old = _lapsed(grid)
    grid.take("m.b")
    assert not grid.scripts.emit(old.lease, "root", ['"a"'], 0)
    assert not grid.scripts.emit("gone:0:0:1:n", "root", ['"a"'], 0)
    assert _pieces(grid, "j1") == []


def test_nor_does_one_whose_lease_has_lapsed(grid: Grid) -> None:
    """The stage is pending again: whoever claims it would add its own answer to the one that had begun."""
    old = _lapsed(grid)
    assert not grid.scripts.emit(old.lease, "root", ['"a"'], 0)
    new = grid.take("m.b")
    assert grid.scripts.emit(new.lease, "root", ['"b"'], 0)
    assert _pieces(grid, "j1") == [b'"b"']


@pytest.mark.parametrize("kind", ["seat", "died", "back"])
def test_after_the_first_token_there_is_no_second_try(grid: Grid, kind: str) -> None:
    grid.seat()
    grid.seat("m.b")
    grid.job(one(), "j1", stream=True)
    claim = grid.take()
    grid.scripts.emit(claim.lease, "root", ['"a"'], 0)
    assert grid.fail(claim, kind) == "plain"
    assert grid.ended("j1").state is JobState.FAILED


def test_nor_after_a_lost_lease(grid: Grid) -> None:
    grid.seat()
    grid.seat("m.b")
    grid.job(one(), "j1", stream=True)
    claim = grid.take()
    grid.scripts.emit(claim.lease, "root", ['"a"'], 0)
    grid.lapse(claim)
    end = grid.ended("j1")
    assert end.state is JobState.FAILED
    assert b"stage.stream_cut" in end.payload


def test_a_retry_of_the_graph_is_another_try(grid: Grid) -> None:
    grid.seat()
    grid.job(plan(step(scope=0), scopes=[Scope("root", None, 2, 0, ((0, 0),))]), "j1", stream=True)
    claim = grid.take()
    grid.scripts.emit(claim.lease, "root", ['"a"'], 0)
    assert grid.fail(claim, "back") == "again"
    assert grid.fail(grid.take(), "back") == "again"  # nothing came out of this one
    assert grid.field("j1", "tries:0") == "1"


def test_a_long_stream_keeps_its_end(grid: Grid) -> None:
    grid.seat()
    grid.job(one(), "j1", stream=True)
    claim = grid.take()
    for first in range(0, 12_000, 2_000):
        grid.scripts.emit(claim.lease, "root", [str(number) for number in range(first, first + 2_000)], first)
    pieces = _pieces(grid, "j1")
    assert 10_000 <= len(pieces) < 10_200
    assert pieces[-1] == b"11999"


def test_a_repeated_call_adds_nothing_twice(grid: Grid) -> None:
    """A connection that breaks after the script ran has it sent again, perhaps with more."""
    grid.seat()
    grid.job(one(), "j1", stream=True)
    claim = grid.take()
    assert grid.scripts.emit(claim.lease, "root", ['"a"', '"b"'], 0)
    assert grid.scripts.emit(claim.lease, "root", ['"a"', '"b"'], 0)
    assert grid.scripts.emit(claim.lease, "root", ['"b"', '"c"'], 1)
    assert grid.scripts.emit(claim.lease, "root", ['"d"'], 3)
    entries = grid.client.xrange(grid.keys("stream", "j1"))
    assert [fields[b"piece"] for _, fields in entries] == [b'"a"', b'"b"', b'"c"', b'"d"']


def test_a_stream_of_the_end_alone_takes_no_pieces_and_tells_the_end(grid: Grid) -> None:
    grid.seat()
    grid.job(one(), "j1", stream="end")
    claim = grid.take()
    assert not claim.stream
    grid.complete(claim, b"1")
    assert [entry for _, entry in grid.client.xrange(grid.keys("stream", "j1"))] == [{b"end": b"done"}]
