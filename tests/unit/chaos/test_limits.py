"""Limits as data: what the files say of them is what was meant, and what overdraws one is found."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from gridq.limits import quotas_file
from gridq.limits.ledger import Entry
from gridq.protocol.models import Limit
from tests.chaos.limits import (
    Bound,
    Use,
    compute_uses,
    format_limits,
    format_quotas_file,
    format_seat_limits,
    list_overdrawn,
)


def limit(resource: str, window: str, most: int) -> Limit:
    return Limit.model_validate({"resource": resource, "window": window, "amount": most})


def test_the_quotas_file_has_the_bounds() -> None:
    bounds = (
        Bound("seat m1.a", "dollars", 5, "month"),  # its own machine's file has it
        Bound("seat m1.a", "requests", 60, "minute", own=False, key="requests_per_minute"),
        Bound("seat m1.a", "dollars", 2_500_000, "week", own=False, key="budget_dollars"),
        Bound("seat m1.a", "tokens", 40, "1m", own=False, key="tokens_per_minute"),
        Bound("owner alice", "tokens", 70, "5h"),
        Bound("family deep", "requests", 3, "day"),
        Bound("grid", "dollars", 1, "1m"),
        Bound("agent cat", "jobs", 4, "month", key="monthly_jobs"),
        Bound("agent cat", "jobs", 2, "day"),
        Bound("team research", "dollars", 9, "month", key="monthly_dollars"),
    )
    found = quotas_file.parse(
        format_quotas_file(bounds, {"cat": "research", "ann": "research"}).format(dollars=7), "q.toml"
    )
    assert found.agents["poor"].money == 7_000_000
    assert found.agents["cat"] == quotas_file.AgentLimit("research", None, 4, (limit("jobs", "day", 2),))
    assert found.agents["ann"] == quotas_file.AgentLimit("research")
    assert found.teams == {"research": quotas_file.TeamLimit(9)}
    assert found.seats["m1.a"].requests_per_minute == 60
    assert set(found.seats["m1.a"].budgets) == {limit("money", "week", 2_500_000), limit("tokens", "1m", 40)}
    assert found.owners == {"alice": (limit("tokens", "5h", 70),)}
    assert found.families == {"deep": (limit("requests", "day", 3),)}
    assert found.grid == (limit("money", "1m", 1),)


def test_a_machines_file_has_its_own_limits_and_its_lending_terms() -> None:
    bounds = (
        Bound("seat m1.a", "dollars", 5_000_000, "day", key="budget"),
        Bound("seat m1.a", "requests", 3, "5h"),
        Bound("seat m1.a", "tokens", 3, "5h", own=False),
        Bound("seat m2.b", "dollars", 1, "day"),
    )
    assert format_seat_limits("m1.a", bounds) == (
        'budget = 5.000000\nperiod = "day"\nbudgets = [{requests = 3, per = "5h"}]'
    )
    assert format_limits([Bound("seat m2.b", "dollars", 1_000_000, "month", share=0.5)]) == (
        'budgets = [{dollars = 2.000000, per = "month"}]\nlend = {share = 0.5}'
    )


class Ledger:
    """Entries, one after the other, of attempts on the seat m1.a for the agent ann of the team t."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def begins(self, name: str, seat: str = "m1.a", bearer: str = "") -> None:
        self._add("refill", seat=seat, agent=bearer, queue=name)

    def ran(
        self,
        attempt: int,
        micro: int,
        what: str = "done",
        *,
        seat: str = "m1.a",
        month: str = "",
        at: int = 0,
    ) -> None:
        self._add(
            what, at, "j", 0, attempt, seat, "ann", "t", "bench:any", micro, micro // 10, 0, 5, month, "g", 1
        )

    def counted(self, month: str) -> None:
        self._add("job", job="j", agent="ann", team="t", month=month)

    def _add(self, what: str, at: int = 0, *rest: object, **more: object) -> None:
        number = len(self.entries) + 1
        self.entries.append(Entry(f"{number}-0", at or number, what, *rest, **more))  # type: ignore[arg-type]

    def use(self, *bounds: Bound) -> list[tuple[int, int, int]]:
        found = compute_uses(bounds, self.entries, {"m1.a": "alice"}, {"m1.a": ("deep",)})
        return [(use.used, use.late, use.windows) for use in found]


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


def test_each_window_begins_at_its_ledger_entry(ledger: Ledger) -> None:
    ledger.begins("own/money/1m")
    ledger.ran(1, 30)
    ledger.ran(2, 30)
    ledger.begins("own/money/1m")
    ledger.ran(3, 50)
    ledger.ran(4, 5, "failed")
    ledger.begins("own/money/1m", seat="m2.b")
    ledger.begins("grid/money/1m")
    ledger.ran(5, 1, "back", seat="m2.b")
    bound = Bound("seat m1.a", "dollars", 60, "1m")
    assert ledger.use(bound) == [(60, 0, 2)]
    # Neither another seat's, nor another sheet, window or thing begins anew with it.
    assert ledger.use(Bound("seat m1.a", "dollars", 60, "day")) == [(115, 0, 1)]
    assert ledger.use(Bound("seat m1.a", "requests", 60, "1m")) == [(4, 0, 1)]
    assert ledger.use(Bound("seat m1.a", "dollars", 60, "1m", own=False)) == [(115, 0, 1)]


def test_shared_limits_count_all_their_users(ledger: Ledger) -> None:
    for bearer in ("g", "o:alice", "f:deep", "a:ann", "t:t"):
        ledger.begins("tokens/day", "", bearer)
    ledger.ran(1, 300)
    ledger.ran(2, 200, "lost")
    ledger.ran(1, 100, seat="m2.b")
    ledger.begins("tokens/day", "", "g")
    ledger.ran(2, 10, seat="m2.b")
    bounds = [Bound(who, "tokens", 1, "day") for who in ("grid", "owner alice", "family deep")]
    assert [most for most, *_ in ledger.use(*bounds)] == [60, 50, 50]
    # Agents and teams pay for what is recorded alone.
    bounds = [Bound(who, "tokens", 1, "day") for who in ("agent ann", "team t", "agent ben")]
    assert [most for most, *_ in ledger.use(*bounds)] == [41, 41, 0]


def test_an_agents_month_is_taken_from_the_entry(ledger: Ledger) -> None:
    for month in ("1", "2", "2"):
        ledger.counted(month)
        ledger.ran(len(ledger.entries), 10, month=month)
    ledger.begins("jobs/month", "", "a:ann")
    ledger.counted("2")
    assert ledger.use(
        Bound("agent ann", "jobs", 9, "month", key="monthly_jobs"),
        Bound("team t", "dollars", 9, "month", key="monthly_dollars"),
        Bound("agent ann", "jobs", 9, "month"),
    ) == [(3, 0, 2), (20, 0, 2), (3, 0, 2)]


def test_the_minute_limit_slides(ledger: Ledger) -> None:
    for attempt, at in enumerate((1000, 30_000, 60_900, 61_100, 200_000), 1):
        ledger.ran(attempt, 1, at=at)
    assert ledger.use(Bound("seat m1.a", "requests", 9, "minute")) == [(3, 0, 1)]


def find_exceeded(bounds: Iterable[Use]) -> list[bool]:
    return [use.over for use in bounds]


def test_only_late_reports_of_abandoned_attempts_may_exceed_a_limit(ledger: Ledger) -> None:
    ledger.ran(1, 0, "lost")
    ledger.ran(2, 90)
    ledger.ran(1, 30, "late")
    bound = Bound("seat m1.a", "dollars", 90, "day")
    assert ledger.use(bound) == [(120, 30, 1)]
    assert find_exceeded(compute_uses([bound], ledger.entries, {}, {})) == [False]
    tighter = Bound("seat m1.a", "dollars", 89, "day")
    found = compute_uses([tighter], ledger.entries, {}, {})
    assert find_exceeded(found) == [True]
    assert list_overdrawn(found) == ("seat m1.a: 120 dollars in day, of 89 and 30 of attempts given up",)
    assert list_overdrawn(compute_uses([bound], ledger.entries, {}, {})) == ()
