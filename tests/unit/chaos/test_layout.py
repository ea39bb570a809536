"""The machines that chaos attacks, and what binds them: files that programs take, and limits that bind."""

from __future__ import annotations

from pathlib import Path

import pytest

from gridq.config.settings import Settings
from gridq.limits import quotas_file
from gridq.profiles.profile import load_profiles
from tests.chaos import plan
from tests.chaos.layout import CONCURRENCY, MODEL_SEAT, TEAM, make_layout, make_limits
from workers.machine import probing

PLAN = plan.make_plan(2000, 5, 300, (), 1.5)


@pytest.mark.parametrize("machines", [1, 2, 3, 5])
def test_every_generated_file_is_valid_and_has_its_limits(tmp_path: Path, machines: int) -> None:
    layout = make_layout(machines, PLAN)
    found = quotas_file.parse(layout.quotas.format(dollars=1), "q.toml")
    assert {found.agents[agent].team for agent in plan.LIMITED_AGENTS} == {TEAM}
    assert found.grid
    assert found.teams[TEAM].budgets
    for machine in layout.machines:
        home = tmp_path / machine.name
        home.mkdir()
        (home / "seats.toml").write_text(machine.terms)
        config = Settings(home=home, profiles=layout.profiles, stages=layout.stages)
        seats = probing.probe_machine(config, load_profiles(layout.profiles))
        # Keys in the environment are not used: each program serves one seat of its machine's file.
        assert not [line for line in seats.missing if not line.startswith("llm: Not set in the environment")]
        assert {seat.name for seat in seats.seats} >= set(machine.seats)
        bench = next(seat for seat in seats.seats if seat.name == "bench")
        id = f"{machine.name}.bench"
        assert bench.terms.owner == layout.owners.get(id, "")
        own = {(limit.resource, limit.window) for limit in bench.offer.limits}
        things = {"dollars": "money"}
        assert own >= {
            (things.get(bound.resource, bound.resource), bound.per)
            for bound in layout.limits
            if bound.who == f"seat {id}" and bound.own
        }
    concurrency = next(seat for seat in seats.seats if seat.name == "bench").offer.concurrency
    assert concurrency == 2 * CONCURRENCY
    assert layout.always_restarted == {f"m{machines}.bench", f"m{machines}.{MODEL_SEAT}"}
    assert list(layout.endpoints) == [f"m{at}.{MODEL_SEAT}" for at in range(1, machines + 1)]


def test_windows_reset_and_the_last_machine_has_room_for_all() -> None:
    limits = make_limits(3, PLAN)
    assert {bound.kind for bound in limits} == {"seat", "owner", "agent", "team", "grid"}
    assert {bound.per for bound in limits} >= {"minute", "1m", "5h", "day", "month"}
    spending = sum(PLAN.spends)
    of_money = [
        bound for bound in limits if bound.who in ("grid", "seat m3.bench") and bound.resource == "dollars"
    ]
    assert all(bound.per == "1m" and bound.amount * PLAN.seconds / 60 > spending * 0.75 for bound in of_money)
    others = sum(b.amount for b in limits if b.who in ("seat m1.bench", "seat m2.bench") and b.per == "5h")
    assert 0 < others < len(PLAN.spends) / 2, "else they would do it all, and nothing would bind"
