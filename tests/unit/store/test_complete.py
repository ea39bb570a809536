"""complete.lua: an output recorded once, what it makes ready, and the slot's next stage."""

from __future__ import annotations

import pytest

from gridq.errors import ValueGone
from gridq.graph.plan import Arms, Plan
from gridq.protocol.queue_names import PURE
from gridq.protocol.states import JobState
from gridq.store import values
from gridq.store.replies import Claim
from tests.unit.store.plans import ANY, HOUR, Grid, branch, chain, one, plan, step, wide

pytestmark = pytest.mark.usefixtures("key_hygiene")


def _run(grid: Grid, given: Plan, outputs: dict[int, bytes] | None = None) -> tuple[str, list[int]]:
    """A job and the steps that ran, in order, until it ended."""
    job = grid.job(given)
    ran = []
    while grid.end(job) is None:
        claim = grid.take()
        number = int(claim.lease.split(":")[1])
        ran.append(number)
        grid.done(claim, (outputs or {}).get(number, b"1"))
    return job, ran


# -- recorded once -----------------------------------------------------------------------------------------


def test_the_last_output_is_the_answer(grid: Grid) -> None:
    grid.seat()
    grid.job(chain(2), "j1")
    assert grid.done(grid.take(), b"1") == ""
    assert grid.field("j1", "unfinished") == "1"
    assert grid.done(grid.take(), b'{"a":2}') == "plain"
    end = grid.ended("j1")
    assert (end.state, end.payload) == (JobState.DONE, b'{"a":2}')
    assert grid.client.llen(grid.keys("rows", "j1")) == 2


def test_the_answer_may_be_another_step_than_the_last(grid: Grid) -> None:
    grid.seat()
    job, _ = _run(grid, plan(step(), step(), answer=0), {0: b'"first"', 1: b'"second"'})
    assert grid.ended(job).payload == b'"first"'


@pytest.mark.parametrize("go_on", [True, False])
def test_a_repeated_completion_returns_0_and_the_same_claim(grid: Grid, go_on: bool) -> None:
    grid.seat(budget=50_000)
    grid.job(chain(3, cost=900), "j1")
    claim = grid.take()
    first = grid.complete(claim, b'"kept"', used=70, go_on=go_on)
    second = grid.complete(claim, b'"other"', used=70, go_on=go_on)
    assert (first[0], second[0]) == (1, 0)
    if go_on:
        assert isinstance(first[2], Claim)
        assert isinstance(second[2], Claim)
        assert first[2].lease == second[2].lease
    assert grid.field("j1", "output:0") == '"kept"'
    assert grid.left() == 50_000 - 70 - (1_000 if go_on else 0)
    assert grid.client.llen(grid.keys("rows", "j1")) == 1


def test_a_slot_that_stops_sends_a_wake_up_for_pending_stages(grid: Grid) -> None:
    grid.seat()
    grid.job(wide(3))
    claim = grid.take()
    grid.clear("seat:m.a", ANY)
    assert grid.complete(claim, go_on=False)[2] == "none"
    assert grid.wake_ups("seat:m.a") == 1


# -- fencing -----------------------------------------------------------------------------------------------


def test_a_wrong_nonce_or_epoch_is_refused(grid: Grid) -> None:
    grid.seat(budget=50_000)
    job = grid.job(one(cost=900))
    claim = grid.take()
    _, number, epoch, attempt, nonce = claim.lease.split(":")
    for wrong in (f"{job}:{number}:{epoch}:{attempt}:other", f"{job}:{number}:1:{attempt}:{nonce}"):
        assert grid.complete(wrong, used=10)[0] == -1
    assert grid.held() == {"0": claim.lease}
    assert grid.left() == 49_000
    assert grid.done(claim) == "plain"


# -- chains and joins --------------------------------------------------------------------------------------


def test_a_join_may_have_a_thousand_inputs(grid: Grid) -> None:
    grid.seat()
    job = grid.job(wide(1_000))
    found: Claim | str = grid.take()
    for number in range(1_000):
        assert isinstance(found, Claim)
        assert int(found.lease.split(":")[1]) < 1_000
        _, _, found = grid.complete(found, str(number).encode(), go_on=True)
    assert isinstance(found, Claim)
    assert found.lease.startswith(f"{job}:1000:")
    assert len(found.values) == 1_000
    assert {int(value or b"") for value in found.values} == set(range(1_000))
    assert grid.done(found) == "plain"


def test_pure_steps_run_on_the_slot_that_made_them_ready(grid: Grid) -> None:
    grid.seat(budget=0)
    grid.seat("m.router", PURE)
    grid.job(plan(step(), step(0, queue=PURE), step(0, queue=PURE), step(1, 2)), "j1")
    _, _, first = grid.complete(grid.take(), go_on=True)
    assert isinstance(first, Claim)
    assert first.queue == PURE
    assert grid.held() == {"0": first.lease}
    assert grid.pending(PURE) == ["j1:2"]
    assert grid.take("m.router").lease.startswith("j1:2:")


def test_pure_steps_of_a_slot_that_stops_wait_in_the_queue(grid: Grid) -> None:
    grid.seat()
    grid.job(plan(step(), step(0, queue=PURE)), "j1")
    assert grid.complete(grid.take(), go_on=False)[2] == "none"
    assert grid.pending(PURE) == ["j1:1"]


@pytest.mark.parametrize("how", ["replaced", "drained", "gone"])
def test_a_replaced_or_leaving_seat_takes_no_pure_step(grid: Grid, how: str) -> None:
    grid.seat()
    grid.job(plan(step(), step(0, queue=PURE)), "j1")
    claim = grid.take()
    if how == "replaced":
        grid.seat(inc="i2")
    else:
        grid.scripts.leave("m.a", "i1", "drain" if how == "drained" else "go")
    result, _, after = grid.complete(claim, go_on=True)
    assert (result, after) == (1, "draining" if how == "drained" else "gone")
    assert grid.pending(PURE) == ["j1:1"]
    assert grid.held() == {}


def test_a_seat_that_left_is_not_idle(grid: Grid) -> None:
    grid.seat("m.a")
    grid.job(chain(2))
    claim = grid.take()
    grid.scripts.leave("m.a", "i1", "go")
    grid.seat("m.b")
    assert grid.complete(claim, go_on=False)[0] == 1
    assert grid.client.zrange(grid.keys("idle", ANY), 0, -1) == []
    assert grid.wake_ups("seat:m.a") == 0
    assert grid.wake_ups("seat:m.b") == 1


# -- gates -------------------------------------------------------------------------------------------------


def test_a_gate_takes_one_arm(grid: Grid) -> None:
    grid.seat()
    assert _run(grid, branch(), {0: b"true"})[1] == [0, 1, 2, 4]
    assert _run(grid, branch(), {0: b"false"})[1] == [0, 3, 4]


@pytest.mark.parametrize("output", [b"1", b'"true"', b"null", b"[true]"])
def test_only_true_takes_the_true_arm(grid: Grid, output: bytes) -> None:
    grid.seat()
    assert _run(grid, branch(), {0: output})[1] == [0, 3, 4]


def test_the_join_reads_null_for_what_was_skipped(grid: Grid) -> None:
    grid.seat()
    grid.job(branch())
    found: Claim | str = grid.take()
    for output in (b"false", b'"no"'):
        assert isinstance(found, Claim)
        _, _, found = grid.complete(found, output, go_on=True)
    assert isinstance(found, Claim)
    assert found.refs == (0, 2, 3)
    assert found.values == (b"false", None, b'"no"')


def test_an_arm_may_be_empty(grid: Grid) -> None:
    grid.seat()
    steps = (step(), step(0), step(0, 1))
    given = plan(*steps, arms=[Arms(0, (1,), ())])
    assert _run(grid, given, {0: b"true"})[1] == [0, 1, 2]
    assert _run(grid, given, {0: b"false"})[1] == [0, 2]
    both = plan(step(), step(0), arms=[Arms(0, (), ())])
    assert _run(grid, both, {0: b"false"})[1] == [0, 1]


def test_arms_may_be_nested(grid: Grid) -> None:
    """0 decides between gate 1 (arms 2 | 3, joined by 4) and 5; 6 joins."""
    grid.seat()
    steps = (step(), step(0), step(1), step(1), step(2, 3), step(0), step(4, 5))
    given = plan(*steps, arms=[Arms(0, (1, 2, 3, 4), (5,)), Arms(1, (2,), (3,))])
    assert _run(grid, given, {0: b"true", 1: b"true"})[1] == [0, 1, 2, 4, 6]
    assert _run(grid, given, {0: b"true", 1: b"false"})[1] == [0, 1, 3, 4, 6]
    job = grid.job(given)
    grid.done(grid.take(), b"false")
    assert grid.field(job, "unfinished") == "2"
    assert grid.pending() == [f"{job}:5"]
    grid.done(grid.take())
    assert grid.done(grid.take()) == "plain"


def test_skipping_the_last_arm_ends_the_job(grid: Grid) -> None:
    grid.seat()
    given = plan(step(), step(0), step(1), answer=0, arms=[Arms(0, (1, 2), ())])
    job, ran = _run(grid, given, {0: b"false"})
    assert ran == [0]
    assert grid.ended(job).payload == b"false"


# -- long values -------------------------------------------------------------------------------------------


def _long(grid: Grid, claim: Claim, data: bytes, *, write: bool = True) -> tuple[int, str, Claim | str]:
    """Complete with a value of its own key, named as the executor does."""
    return grid.complete(claim, b"@" + claim.lease.encode(), long=data if write else None)


def test_a_long_value_is_linked_and_read_in_chunks(grid: Grid, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "CHUNK_BYTES", 1000)
    grid.seat()
    grid.job(chain(2), "j1")
    data = b'"' + b"x" * 4998 + b'"'
    assert _long(grid, grid.take(), data)[0] == 1
    claim = grid.take()
    (link,) = claim.values
    assert link is not None
    assert values.is_link(link)
    assert values.read(grid.client, grid.keys, link) == data
    grid.done(claim)
    with pytest.raises(ValueGone):
        values.read(grid.client, grid.keys, link)
    assert not grid.client.exists(grid.keys("values", "j1"))


def test_a_link_without_its_value_is_not_recorded(grid: Grid) -> None:
    grid.seat()
    grid.job(one())
    claim = grid.take()
    assert _long(grid, claim, b"", write=False)[0] == -2
    assert grid.held() == {"0": claim.lease}
    assert _long(grid, claim, b"[1]")[0] == 1


def test_a_long_answer_outlives_the_job(grid: Grid) -> None:
    grid.seat()
    grid.job(chain(2), "j1", ttl_ms=9000)
    first, answer = grid.take(), None
    _long(grid, first, b"[1]")
    answer = grid.take()
    _long(grid, answer, b"[2]")
    payload = grid.ended("j1").payload
    assert values.read(grid.client, grid.keys, payload) == b"[2]"
    assert {name for name in grid.own() if name.startswith("value:")} == {f"value:{answer.lease}"}
    # A repeat writes the value anew: what is the answer keeps the answer's life, what is not goes.
    _long(grid, answer, b"[2]")
    assert 0 < grid.client.pttl(grid.keys("value", answer.lease)) <= 9000
    assert _long(grid, first, b"[1]")[0] == 0
    assert not grid.client.exists(grid.keys("value", first.lease))


def test_a_long_value_of_a_fenced_attempt_is_deleted(grid: Grid) -> None:
    grid.seat("m.a")
    grid.seat("m.b")
    grid.job(one())
    old = grid.take("m.a")
    grid.lapse(old)
    grid.take("m.b")
    assert _long(grid, old, b"[1]")[0] == -1
    assert not grid.client.exists(grid.keys("value", old.lease))


def test_a_long_input_is_deleted_with_its_job(grid: Grid) -> None:
    grid.seat()
    grid.client.set(grid.keys("value", "j1:in"), b"[1]", px=HOUR)
    grid.job(one(), "j1", value=b"@j1:in")
    claim = grid.take()
    assert values.read(grid.client, grid.keys, claim.input) == b"[1]"
    grid.done(claim)
    assert not grid.client.exists(grid.keys("value", "j1:in"))


def test_a_long_completion_survives_a_script_flush(grid: Grid) -> None:
    grid.seat()
    grid.job(one(), "j1")
    claim = grid.take()
    grid.client.script_flush()
    assert _long(grid, claim, b"[1]")[:2] == (1, "plain")
    assert grid.client.llen(grid.keys("rows", "j1")) == 1
