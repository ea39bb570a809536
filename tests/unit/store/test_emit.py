"""emit.lua: pieces of an answer, from the attempt that counts."""

from __future__ import annotations

import json

import pytest

from gridq.graph.plan import Scope
from gridq.protocol.states import JobState
from tests.pieces import emit
from tests.unit.store.plans import Grid, one, plan, step

pytestmark = pytest.mark.usefixtures("key_hygiene")


def _pieces(grid: Grid, job: str) -> list[bytes]:
    return [entry[b"piece"] for _, entry in grid.client.xrange(grid.keys("stream", job)) if b"piece" in entry]


def test_an_attempt_whose_lease_has_lapsed_emits_nothing(grid: Grid) -> None:
    """The stage is pending again: its next attempt would append to the answer that had begun."""
    grid.seat()
    grid.seat("m.b")
    grid.job(one(), "j1", stream=True)
    old = grid.take()
    grid.lapse(old)
    assert not emit(grid.scripts, old.lease, "root", ['"a"'], 0)
    new = grid.take("m.b")
    assert emit(grid.scripts, new.lease, "root", ['"b"'], 0)
    assert _pieces(grid, "j1") == [b'"b"']


@pytest.mark.parametrize("kind", ["seat", "died", "back", "lapse"])
def test_a_stage_is_not_retried_after_its_first_token(grid: Grid, kind: str) -> None:
    grid.seat()
    grid.seat("m.b")
    grid.job(one(), "j1", stream=True)
    claim = grid.take()
    emit(grid.scripts, claim.lease, "root", ['"a"'], 0)
    if kind == "lapse":
        grid.lapse(claim)
    else:
        assert grid.fail(claim, kind) == "plain"
    assert grid.ended("j1").state is JobState.FAILED
    assert kind != "lapse" or b"stage.stream_cut" in grid.ended("j1").payload


def test_a_retry_runs_a_streamed_stage_again(grid: Grid) -> None:
    grid.seat()
    grid.job(plan(step(scope=0), scopes=[Scope("root", None, 2, 0, ((0, 0),))]), "j1", stream=True)
    claim = grid.take()
    emit(grid.scripts, claim.lease, "root", ['"a"'], 0)
    assert grid.fail(claim, "back") == "again"
    assert grid.fail(grid.take(), "back") == "again"  # nothing came out of this one
    assert grid.field("j1", "tries:0") == "1"


def test_a_trimmed_stream_keeps_its_latest_pieces(grid: Grid) -> None:
    grid.seat()
    grid.job(one(), "j1", stream=True)
    claim = grid.take()
    for first in range(0, 12_000, 2_000):
        emit(
            grid.scripts, claim.lease, "root", [str(number) for number in range(first, first + 2_000)], first
        )
    pieces = _pieces(grid, "j1")
    assert 10_000 <= len(pieces) < 10_200
    assert pieces[-1] == b"11999"


def test_a_repeated_emit_adds_no_piece_twice(grid: Grid) -> None:
    """A call is repeated if its reply is lost, perhaps with more pieces."""
    grid.seat()
    grid.job(one(), "j1", stream=True)
    claim = grid.take()
    assert emit(grid.scripts, claim.lease, "root", ['"a"', '"b"'], 0)
    assert emit(grid.scripts, claim.lease, "root", ['"a"', '"b"'], 0)
    assert emit(grid.scripts, claim.lease, "root", ['"b"', '"c"'], 1)
    assert emit(grid.scripts, claim.lease, "root", ['"d"'], 3)
    entries = grid.client.xrange(grid.keys("stream", "j1"))
    assert [fields[b"piece"] for _, fields in entries] == [b'"a"', b'"b"', b'"c"', b'"d"']


def test_what_has_no_effect_stands_beside_the_first_piece(grid: Grid) -> None:
    grid.seat()
    grid.job(one(), "j1", stream=True)
    claim = grid.take()
    dropped = ["seed", 'a "b", c']
    assert emit(grid.scripts, claim.lease, "root", ['"a"', '"b"'], 0, dropped)
    assert emit(grid.scripts, claim.lease, "root", ['"a"', '"b"', '"c"'], 0, dropped)
    assert emit(grid.scripts, claim.lease, "root", ['"d"'], 3, dropped)
    entries = [fields for _, fields in grid.client.xrange(grid.keys("stream", "j1"))]
    assert [b"dropped" in fields for fields in entries] == [True, False, False, False]
    assert json.loads(entries[0][b"dropped"]) == dropped
    assert list(entries[0]) == [b"path", b"piece", b"dropped"]


def test_an_end_only_stream_has_no_pieces_but_the_end(grid: Grid) -> None:
    grid.seat()
    grid.job(one(), "j1", stream="end")
    claim = grid.take()
    assert not claim.stream
    grid.complete(claim, b"1")
    assert [entry for _, entry in grid.client.xrange(grid.keys("stream", "j1"))] == [{b"end": b"done"}]
