"""Meters: several windows at once of money, tokens, requests and stages at once, of a seat and of what seats
share; all are looked at, then all hold, or none does.
"""

from __future__ import annotations

import pytest

from gridq.protocol.meters import Meter
from gridq.protocol.models import Limit, Resource
from tests.unit.store.ledger_entries import check_ledger, find_entries
from tests.unit.store.limits import DAY, HOUR, account, expire_meters, limit, turn, turn_at
from tests.unit.store.plans import Grid, chain, one, wide

pytestmark = pytest.mark.usefixtures("key_hygiene")


def make_limit(resource: Resource, window: str, amount: int) -> Limit:
    return Limit(resource=resource, window=window, amount=amount)


def numbers(meters: list[Meter]) -> dict[str, tuple[int, int]]:
    """Return what is used and reserved of each meter, by its name."""
    return {meter.name: (meter.used, meter.reserved) for meter in meters}


# -- windows


def test_every_window_of_a_seat_binds(grid: Grid) -> None:
    turn_at(grid, 20 * DAY)
    turn_at(grid, HOUR, period="day")
    grid.seat(budget=10_000, limits=[make_limit("money", "day", 3_000), make_limit("requests", "5h", 4)])
    grid.job(wide(9, cost=1_000))
    for _ in range(3):
        grid.done(grid.take(), used=1_000)
    assert grid.claim() == "none"  # the day is used up
    turn(grid, "day")
    grid.done(grid.take(), used=1_000)
    assert grid.claim() == "none"  # four requests within five hours
    expire_meters(grid, "5h")
    turn(grid, "day")
    grid.done(grid.take(), used=900)
    assert numbers(grid.meters()) == {"money/month": (4_900, 0), "money/day": (900, 0), "requests/5h": (1, 0)}
    check_ledger(grid)


def test_a_five_hour_window_begins_with_its_first_use(grid: Grid) -> None:
    grid.seat(limits=[make_limit("requests", "5h", 2)])
    assert grid.meters()[0].resets_at is None
    grid.job(wide(4))
    grid.done(grid.take())
    began = grid.meters()[0].resets_at
    assert began is not None
    assert abs(began - grid.now() - 5 * HOUR) < HOUR
    grid.done(grid.take())
    assert grid.meters()[0].resets_at == began
    assert grid.claim() == "none"
    expire_meters(grid, "5h")
    assert grid.meters()[0].resets_at is None
    assert grid.meters()[0].remaining == 2
    grid.done(grid.take())
    assert numbers(grid.meters()) == {"requests/5h": (1, 0)}
    check_ledger(grid)


def test_a_clock_set_back_does_not_lengthen_a_window(grid: Grid) -> None:
    grid.seat(limits=[make_limit("requests", "1h", 2)])
    grid.job(wide(3))
    grid.done(grid.take())
    far = grid.now() + 400 * DAY
    grid.client.hset(grid.keys("seat", "m.a"), "own", f"requests/1h/2/1/0/{far}")
    grid.done(grid.take())
    assert (grid.meters()[0].resets_at or 0) <= grid.now() + HOUR
    check_ledger(grid)


def test_a_reservation_held_over_the_reset_is_settled_in_the_new_window(grid: Grid) -> None:
    grid.seat(concurrency=2, limits=[make_limit("tokens", "5h", 1_000), make_limit("requests", "5h", 9)])
    grid.job(wide(2))
    first, second = grid.take(slot="0"), grid.take(slot="1")
    grid.done(first, tokens=(100, 50))
    expire_meters(grid, "5h")
    assert numbers(grid.meters()) == {"tokens/5h": (0, 0), "requests/5h": (0, 1)}
    grid.done(second, tokens=(10, 20))
    assert numbers(grid.meters()) == {"tokens/5h": (30, 0), "requests/5h": (1, 0)}
    check_ledger(grid)


# -- things


@pytest.mark.parametrize(
    ("how", "counts"), [("done", 1), ("stage", 1), ("seat", 1), ("lapsed", 1), ("back", 0), ("back, used", 1)]
)
def test_attempts_that_used_anything_count_as_requests(grid: Grid, how: str, counts: int) -> None:
    """The provider counts every request; a stage returned before it used anything was none."""
    grid.seat(limits=[make_limit("requests", "day", 9)])
    grid.job(one())
    claim = grid.take()
    assert numbers(grid.meters()) == {"requests/day": (0, 1)}
    if how == "done":
        grid.done(claim)
    elif how == "lapsed":
        grid.lapse(claim)
    else:
        grid.fail(claim, how.partition(",")[0], tokens=(7, 0) if "used" in how else (0, 0))
    assert numbers(grid.meters()) == {"requests/day": (counts, 0)}
    check_ledger(grid)
    grid.complete(claim, tokens=(9, 9))  # what comes later is not another one
    assert numbers(grid.meters()) == {"requests/day": (counts, 0)}
    check_ledger(grid)


def test_tokens_of_every_attempt_count(grid: Grid) -> None:
    grid.seat(limits=[make_limit("tokens", "week", 1_000)])
    grid.job(one(), "j")
    grid.fail(grid.take(), "seat", tokens=(300, 0))
    grid.wait_over()
    grid.done(grid.take(), tokens=(200, 600))
    assert numbers(grid.meters()) == {"tokens/week": (1_100, 0)}
    grid.job(one())
    assert grid.claim() == "none"
    check_ledger(grid)


def test_an_owners_parallel_limit_binds_all_its_seats(grid: Grid) -> None:
    limit(grid, "[owners.alice]\nparallel = 2\n")
    grid.seat("m.a", concurrency=3, owner="alice")
    grid.seat("m.b", concurrency=3, owner="alice")
    grid.seat("m.c", owner="bob")
    grid.job(wide(5))
    first = grid.take("m.a", slot="0")
    grid.take("m.b", slot="0")
    assert grid.claim("m.a", slot="1") == "none"
    assert grid.claim("m.b", slot="1") == "none"
    grid.take("m.c")
    grid.done(first)
    grid.take("m.b", slot="1")
    check_ledger(grid)


def test_built_in_stages_are_no_requests(grid: Grid) -> None:
    grid.seat("m.r", "gridq:local", limits=[make_limit("requests", "day", 1), make_limit("tokens", "day", 0)])
    grid.job(chain(3, queue="gridq:local"))
    for _ in range(3):
        grid.done(grid.take("m.r"))
    assert numbers(grid.meters("m.r")) == {"requests/day": (0, 0), "tokens/day": (0, 0)}


# -- what seats share


SHARED = """
[grid]
budgets = [{dollars = 0.01, per = "day"}]
[owners.alice]
budgets = [{dollars = 0.006, per = "day"}]
[families.opus]
budgets = [{requests = 1, per = "5h"}]
"""


def test_owner_family_and_the_whole_grid_bind(grid: Grid) -> None:
    turn_at(grid, DAY, period="day")
    limit(grid, SHARED)
    grid.seat("m.a", "llm:any", owner="alice")
    grid.seat("m.b", "llm:any", owner="alice")
    grid.seat("m.c", "llm:any", "llm:opus", families={"llm:opus": ["opus-4", "opus"]})
    grid.job(wide(11, cost=1_000, queue="llm:any"))
    for seat in ("m.a", "m.b", "m.a", "m.b", "m.a", "m.b"):
        grid.done(grid.take(seat), used=1_000)
    assert grid.claim("m.a") == "none"
    assert grid.claim("m.b") == "none"
    assert account(grid, "alice", "money a day").remaining == 0
    assert account(grid, "all of it", "money a day").spent == 6_000
    grid.job(wide(2, cost=1_000, queue="llm:opus"), prio=0)
    for _ in range(4):
        grid.done(grid.take("m.c"), used=1_000)
    assert grid.claim("m.c") == "none"
    assert account(grid, "all of it", "money a day").remaining == 0
    assert account(grid, "opus", "requests in 5h").spent <= 1
    check_ledger(grid)


def test_a_family_budget_binds_only_in_its_queues(grid: Grid) -> None:
    limit(grid, SHARED)
    grid.seat("m.c", "llm:opus", "llm:haiku", families={"llm:opus": ["opus"], "llm:haiku": ["haiku"]})
    grid.job(wide(2, queue="llm:opus"))
    grid.done(grid.take("m.c"))
    assert grid.claim("m.c") == "none"
    assert numbers(grid.shared("f:opus")) == {"requests/5h": (1, 0)}
    grid.job(one(queue="llm:haiku"))
    assert grid.take("m.c").queue == "llm:haiku"
    check_ledger(grid)


def test_a_claim_reserves_on_all_meters_or_on_none(grid: Grid) -> None:
    """The last meter checked has no room: nothing is reserved on any."""
    limit(grid, SHARED.replace("0.006", "0.015").replace("0.01,", "0.5,"))
    grid.seat(budget=100_000, concurrency=2, owner="alice", limits=[make_limit("requests", "5h", 9)])
    grid.job(wide(3, cost=5_000))
    before = grid.take(slot="0")

    def sheets() -> list[dict[str, tuple[int, int]]]:
        return [numbers(found) for found in (grid.meters(), grid.shared("g"), grid.shared("o:alice"))]

    held = sheets()
    assert held == [
        {"money/month": (0, 10_000), "requests/5h": (0, 1)},
        {"money/day": (0, 10_000)},
        {"money/day": (0, 10_000)},
    ]
    assert grid.claim(slot="1") == "none"
    assert sheets() == held
    grid.done(before, used=10)
    grid.take(slot="1")


def test_a_lease_is_settled_on_the_accounts_of_its_claim(grid: Grid) -> None:
    limit(grid, SHARED)
    grid.seat(concurrency=3, owner="alice")
    grid.job(wide(4, cost=900))
    first = grid.take(slot="0")
    grid.seat(concurrency=3, owner="bob")
    second = grid.take(slot="1")
    grid.done(first, used=700)
    grid.done(second, used=50)
    assert numbers(grid.shared("o:alice")) == {"money/day": (700, 0)}
    assert numbers(grid.shared("g")) == {"money/day": (750, 0)}
    check_ledger(grid)


def test_limits_may_be_added_changed_and_removed_during_work(grid: Grid) -> None:
    grid.seat(concurrency=4, owner="alice", budget=10**6)
    grid.job(wide(8, cost=900))
    early = grid.take(slot="0")
    limit(grid, SHARED)
    during = grid.take(slot="1")
    grid.done(early, used=100)  # it knew of the seat's own alone
    assert numbers(grid.shared("g")) == {"money/day": (0, 1_000)}
    limit(grid, SHARED.replace("0.01", "0.02"))
    grid.done(during, used=300)
    assert [(m.limit, m.used, m.reserved) for m in grid.shared("g")] == [(20_000, 300, 0)]
    check_ledger(grid)
    last = grid.take(slot="2")
    limit(grid, "")
    assert not grid.client.exists(grid.keys("meters"))
    limit(grid, SHARED)
    assert numbers(grid.shared("g")) == {"money/day": (0, 1_000)}  # still held, under that name
    grid.done(last, used=40)
    assert numbers(grid.shared("g")) == {"money/day": (40, 0)}
    check_ledger(grid)


def test_a_seat_that_dies_releases_its_reservations(grid: Grid) -> None:
    limit(grid, SHARED)
    grid.seat(owner="alice", budget=10_000, limits=[make_limit("parallel", "-", 1)])
    grid.job(one(cost=900))
    grid.take()
    grid.scripts.leave("m.a", "i1", "died")
    assert numbers(grid.shared("g")) == {"money/day": (0, 0)}
    assert numbers(grid.meters()) == {"money/month": (0, 0), "parallel/-": (0, 0)}
    check_ledger(grid)


def test_a_ledger_entry_names_the_charged_accounts(grid: Grid) -> None:
    limit(grid, SHARED)
    grid.seat("m.a", "llm:opus", owner="alice", families={"llm:opus": ["opus"]})
    grid.job(one(queue="llm:opus"))
    grid.done(grid.take(), used=5)
    (entry,) = find_entries(grid)
    assert (entry.accounts, entry.requests) == ("g,o:alice,f:opus", 1)


# -- estimates


def submit_estimated(grid: Grid, job: str, tokens_in: int, tokens_out: int, **options: object) -> None:
    """A job of one stage that will use so many tokens."""
    grid.job(one(**options), job)
    grid.client.hset(grid.keys("job", job), "tokens:0", f"{tokens_in} {tokens_out}")


def test_the_estimate_of_a_stage_is_reserved_until_settlement(grid: Grid) -> None:
    """Slots side by side cannot draw more than there is, though no stage says what it costs."""
    grid.seat(
        concurrency=4,
        budget=10_000,
        limits=[make_limit("tokens", "day", 9_000)],
        prices=(1_000_000, 5_000_000),
    )
    for number in range(4):
        submit_estimated(grid, f"j{number}", 1_000, 500)
    first = grid.take(slot="0")
    assert numbers(grid.meters()) == {"money/month": (0, 3_500), "tokens/day": (0, 1_500)}
    grid.take(slot="1")
    assert grid.claim(slot="2") == "none"  # two of $0.0035 leave less than another needs
    grid.done(first, used=1_200, tokens=(900, 60))
    assert numbers(grid.meters()) == {"money/month": (1_200, 3_500), "tokens/day": (960, 1_500)}
    grid.take(slot="2")
    check_ledger(grid)


def test_a_large_estimate_does_not_block_smaller_stages_behind_it(grid: Grid) -> None:
    grid.seat(concurrency=2, limits=[make_limit("tokens", "day", 1_000)])
    submit_estimated(grid, "warm-up", 300, 300)
    grid.done(grid.take(), tokens=(300, 300))
    submit_estimated(grid, "large", 500, 300)
    submit_estimated(grid, "small", 100, 101)
    submit_estimated(grid, "smaller", 200, 100)
    assert grid.take(slot="0").job in ("small", "smaller")
    assert grid.claim(slot="1") == "none"  # together they want too much
    assert "large:0" in grid.pending()


def test_an_estimate_over_the_whole_window_waits_for_an_empty_window(grid: Grid) -> None:
    grid.seat(concurrency=2, limits=[make_limit("tokens", "day", 1_000)])
    submit_estimated(grid, "huge", 5_000, 5_000)
    grid.done(grid.take(), tokens=(900, 50))
    submit_estimated(grid, "huge-2", 5_000, 5_000)
    assert grid.claim() == "none"
    expire_meters(grid, "day")
    check_ledger(grid)


@pytest.mark.parametrize(
    "limits", [[make_limit("money", "day", 0)], [make_limit("tokens", "day", 0)]], ids=["money", "tokens"]
)
def test_a_limit_of_zero_permits_no_larger_estimate(grid: Grid, limits: list[Limit]) -> None:
    """The window is empty, but a stage over a limit of zero may not run in it."""
    grid.seat(limits=limits, prices=(1_000_000, 5_000_000))
    submit_estimated(grid, "j", 1_000, 500)
    assert grid.claim() == "none"


# -- the clock


def test_a_sweep_shortens_windows_after_the_clock_was_set_back(grid: Grid) -> None:
    """A used-up window lasts for its length at most, even if nothing is written to it."""
    for period in ("month", "week", "day"):
        turn_at(grid, 20 * HOUR, period=period)
    limit(
        grid,
        '[agents.ann]\nbudgets = [{jobs = 1, per = "day"}]\n[grid]\nbudgets = [{tokens = 1, per = "week"}]',
    )
    grid.seat(limits=[make_limit("requests", "5h", 1), make_limit("requests", "month", 9)])
    grid.job(one())
    grid.done(grid.take(), tokens=(7, 0))
    year = 365 * DAY

    def sheets() -> dict[str, Meter]:
        found = (*grid.meters(), *grid.shared("g"), *grid.shared("a:ann"))
        return {meter.name: meter for meter in found}

    for key, field in (
        (grid.keys("seat", "m.a"), "own"),
        *((grid.keys("meters"), name) for name in ("g", "a:ann")),
    ):
        text = grid.client.hget(key, field).decode()
        ahead = [word.rpartition("/") for word in text.split()]
        grid.client.hset(key, field, " ".join(f"{rest}/{int(end) + year}" for rest, _, end in ahead))
    assert all((meter.resets_at or 0) > grid.now() + year / 2 for meter in sheets().values())
    grid.client.set(grid.keys("last_sweep"), grid.now() + year, px=HOUR)
    grid.scripts.sweep()
    now = grid.now()
    ends = {
        name: (meter.used, round(((meter.resets_at or 0) - now) / HOUR)) for name, meter in sheets().items()
    }
    assert ends == {
        "requests/5h": (1, 5), "requests/month": (1, 20), "tokens/week": (7, 20), "jobs/day": (1, 20),
    }  # fmt: skip
    check_ledger(grid)


def test_an_impossible_window_end_is_corrected_on_the_next_write(grid: Grid) -> None:
    """The clock was set back and no sweep has noticed it yet."""
    turn_at(grid, 20 * HOUR, period="day")
    grid.seat(limits=[make_limit("tokens", "day", 9), make_limit("requests", "day", 9)])
    text = f"tokens/day/9/3/0/{grid.now() + 3 * DAY} requests/day/9/2/0/{grid.now() + 3 * DAY}"
    grid.client.hset(grid.keys("seat", "m.a"), "own", text)
    grid.job(one())
    grid.done(grid.take())
    assert numbers(grid.meters()) == {"tokens/day": (3, 0), "requests/day": (3, 0)}
    assert {round(((meter.resets_at or 0) - grid.now()) / HOUR) for meter in grid.meters()} == {20}
