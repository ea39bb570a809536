"""Each benchmark runs in its smallest form and counts correctly. No test depends on measured times."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from benchmarks import (
    backlog,
    chain,
    criteria,
    fanin,
    idle,
    memory,
    onestage,
    programs,
    recovery,
    report,
    reservations,
    scripts,
    slots,
    soak,
)
from benchmarks.measure import Figure, Ratio, alternate, compute_percentile
from benchmarks.sides import Sides


@pytest.fixture(scope="module")
def sides() -> Iterator[Sides]:
    with Sides() as started:
        yield started


def test_chain(sides: Sides) -> None:
    found = chain.run(sides, hops=3, rounds=1)
    assert [each.name for each in found] == [
        "chain of 3 stages, 1 KB, time per hop",
        "chain of 3 stages, 100 KB, time per hop",
    ]
    for each in found:
        assert isinstance(each, Ratio)
        assert each.to_line().endswith(f" {each.ours / each.theirs:.2f}")


def test_fanin_leaves_no_wake_up(sides: Sides) -> None:
    throughput, wake_ups = fanin.run(sides, width=20, rounds=1)
    assert isinstance(throughput, Ratio)
    assert isinstance(wake_ups, Figure)
    assert wake_ups.value == 0


def test_onestage(sides: Sides) -> None:
    before = sides.routed
    found = onestage.run(sides, singles=2, many=5, rounds=1)
    assert len(found) == 4
    assert sides.routed - before == 3 + 2 + 5


def test_scripts(sides: Sides) -> None:
    table, figures = scripts.run(sides, sizes=(10, 60), samples=5)
    assert all(set(by_size) == {10, 60} for by_size in table.rows.values())
    assert all(0 < p50 <= p99 for by_size in table.rows.values() for p50, p99 in by_size.values())
    assert len(table.to_markdown()) == 2 + len(table.rows)
    assert len(figures) == 2 * len(table.rows)
    assert not list(sides.store.scan_iter("bench-*")), "keys of a benchmark grid are left"
    text = report.render_page({"scripts": figures}, table, sides.server_version, 1.0, 0.5)
    assert table.to_markdown()[-1] in text


def test_memory_sees_the_keys_of_jobs(sides: Sides, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "RESULT_TTL_SECONDS", 0.0)
    monkeypatch.setattr(memory, "EXPIRY_SECONDS", 0.0)
    found = memory.run(sides, jobs=sides.routed + 5)
    idle, router, worker, left = (each.value for each in found if isinstance(each, Figure))
    assert min(idle, router, worker) > 20
    assert left > 0, "the keys have not expired yet"


def test_backlog_counts_its_jobs(sides: Sides) -> None:
    found = backlog.run(sides, jobs=300, samples=5)
    assert len(found) == 1 + len(backlog.SCRIPT_TITLES) + 1 + 2
    assert isinstance(found[0], Figure)
    assert 500 < found[0].value < 4096
    assert not list(sides.store.scan_iter("bench-*")), "keys of a benchmark grid are left"


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("openssl"), reason="openssl makes the endpoint's certificate")
def test_idle_workers_are_small() -> None:
    found = idle.run(calls=2, settle=0.0)
    assert [type(each) for each in found] == [Ratio] * 2 + [Figure] * 8
    assert [each.name for each in found if "just started" in each.name and each.outcome != "met"] == []
    assert all(each.value > 20 for each in found if isinstance(each, Figure))


@pytest.mark.slow
def test_calls_on_all_slots_lose_nothing() -> None:
    found = {each.name: each for each in slots.run(concurrency=4, rounds=2, pieces=3, rate=20)}
    lost = [each for name, each in found.items() if "lost" in name]
    assert [each.name for each in lost] == [
        "4 calls at once on 4 slots, whole: answers lost of 8",
        "4 calls at once on 4 slots, streams of 3 pieces: lost or double of 12",
    ]
    assert all(isinstance(each, Figure) and each.value == 0 for each in lost)
    assert all(isinstance(each, Figure) and each.value > 0 for each in found.values() if each not in lost)


def test_reservations_run_under_budgets() -> None:
    found = reservations.compare_sides(seats=3, agents=2, budgets=4, stages=2 * reservations.TURN_STAGES)
    assert len(found) == 4
    for each in found:
        assert isinstance(each, Ratio)
        assert min(each.ours, each.theirs) > 0
    assert [each.outcome for each in found if "commands" in each.name] == ["met", "met"]


@pytest.mark.slow
def test_a_worker_calls_one_script_to_claim_and_one_to_complete() -> None:
    assert reservations.count_worker_calls(3) == {"claim": 3, "complete": 3}


def test_a_program_is_called_bare_and_through_its_seat() -> None:
    found = programs.run(calls=1)
    assert [each.name.partition(":")[0] for each in found] == [
        "whole, median",
        "whole, quickest tenth",
        "streamed, median",
        "streamed, quickest tenth",
    ]


@pytest.mark.slow
def test_recovery_measures_each_stage_of_the_killed() -> None:
    found = recovery.run(kills=1)
    assert all(isinstance(each, Figure) and each.value > 0 for each in found)


@pytest.mark.slow
def test_criteria_answer_every_request_though_a_worker_is_killed() -> None:
    failed, *_, again = criteria.run(workers=2, minutes=0.1, a_minute=60)
    assert isinstance(failed, Figure)
    assert failed.value == 0
    assert isinstance(again, Figure)
    assert again.value > 0


@pytest.mark.slow
def test_soak_ends_each_job_as_expected() -> None:
    *slopes, entry, keys, wrong = soak.run(minutes=0.05, sample=0.2)
    assert len(slopes) == 4
    assert isinstance(entry, Figure)
    assert 0 < entry.value <= soak.MAX_ENTRY_BYTES
    assert isinstance(wrong, Figure)
    assert wrong.value == 0
    assert isinstance(keys, Figure)


def test_a_slope_is_that_of_the_second_half() -> None:
    rises = [(float(at), 50.0 + at) for at in range(10)]
    level = [(float(at), 60.0) for at in range(10, 20)]
    assert soak.compute_slope(rises + level) == 0
    assert round(soak.compute_slope(level + [(at + 10.0, mb) for at, mb in rises])) == 3600


def test_a_whole_run_keeps_the_separate_groups() -> None:
    first = report.replace_group("# Page\n", "soak", [Figure("slope", 1.0, "MB/h", 2)], 0.1)
    both = report.replace_group(first, "recovery", [Figure("kill", 2.5, "s", 3.5)], 0.1)
    again = report.replace_group(both, "soak", [Figure("slope", 1.5, "MB/h", 2)], 0.1)
    assert again.count("### ") == 2
    assert "1.5 MB/h" in again
    assert "1 MB/h" not in again
    assert again.index("### recovery") < again.index("### soak")
    assert report.extract_separate_groups("# Page\n") == ""
    assert "# New\n" + report.extract_separate_groups(again) == again.replace("# Page", "# New")


def test_sides_take_turns() -> None:
    turns: list[str] = []
    alternate(2, lambda: turns.append("a"), lambda: turns.append("b"))
    assert turns == ["a", "b", "b", "a"]


def test_percentile() -> None:
    assert compute_percentile([3, 1, 2], 0.5) == 2
    assert compute_percentile(range(100), 0.99) == 99


@pytest.mark.parametrize(
    ("ours", "at_most", "outcome"),
    [
        (2.0, True, "met"),
        (2.4, True, "within the worst"),
        (3.0, True, "missed"),
        (3.0, False, "met"),
        (1.0, False, "missed"),
    ],
)
def test_outcomes(ours: float, at_most: bool, outcome: str) -> None:
    assert Ratio("n", ours, 1.0, "ms", 2.2, at_most=at_most, worst=2.5 if at_most else 2.0).outcome == outcome
