"""An overloaded grid completes what it admits, interactive work first, and explains each refusal.

No test depends on measured times.
"""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from benchmarks import forecast, overload
from benchmarks.overload import Answer, RequestResults
from gridq.app import app
from gridq.errors import GridError, QueueFull
from gridq.limits.quotas_file import parse
from gridq.limits.quotas_loader import put_in_force
from gridq.messaging import wake_ups
from gridq.submission.admission import Admission
from gridq.views.audit import find_breaches
from tests.conftest import GridEnv
from tests.fakes.bench_profile import BenchProfile
from tests.local_grid import LocalGrid

ANY = "bench:any"
BOUND = 6
SLEEP = {"root": {"op": "Stage", "id": "bench_sleep"}}


def test_admitted_jobs_complete_and_batch_jobs_are_dropped(
    grid_env: GridEnv, key_hygiene: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, client = grid_env.settings, grid_env.client
    with LocalGrid(client, config, {"m.a": [ANY]}, concurrency=2) as grid:
        wake_ups.write_templates(app, client, grid.scripts.keys)
        text = f'[queues."{ANY}"]\nmax_pending = {BOUND}\npolicy = "drop-oldest-batch"'
        put_in_force(grid.scripts, parse(text, "q.toml"), "a test")
        admission = Admission(grid.scripts, config, {"bench": BenchProfile()})
        monkeypatch.setattr(grid.client, "_admission", admission)
        taken: dict[str, list[str]] = {"interactive": [], "batch": []}
        refused: list[tuple[str, GridError]] = []
        deepest: list[int] = []

        def caller(number: int) -> None:
            for turn in range(25):
                priority = "interactive" if turn % 5 == 0 else "batch"
                try:
                    job = grid.client.submit(SLEEP, {"ms": 20}, agent=f"a{number}", priority=priority)
                    taken[priority].append(job)
                except QueueFull as exc:
                    refused.append((priority, exc))
                deepest.append(sum(map(int, client.hvals(grid.scripts.keys("classes", ANY)))))

        callers = [threading.Thread(target=caller, args=(number,)) for number in range(8)]
        for thread in callers:
            thread.start()
        for thread in callers:
            thread.join(60)
        ends: dict[str, Counter[str]] = {priority: Counter() for priority in taken}
        for priority, jobs in taken.items():
            for job in jobs:
                try:
                    grid.client.result(job, 30)
                    ends[priority]["done"] += 1
                except GridError as exc:
                    ends[priority][exc.code] += 1
        assert ends["interactive"].keys() == {"done"}
        assert ends["batch"].keys() <= {"done", "queue.dropped"}
        assert ends["batch"]["queue.dropped"]
        assert len(taken["interactive"]) + len(taken["batch"]) + len(refused) == 8 * 25
        assert refused
        assert max(deepest) <= BOUND
        for _, error in refused:
            assert error.details["bottleneck"] == f"max_pending of {ANY} ({BOUND})"
            assert error.details["retry_after"] > 0
            assert error.fix
        assert not find_breaches(client, grid.scripts.keys)


def test_the_overload_benchmark_in_its_smallest_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRIDQ_HEARTBEAT", "0.5")
    found = {row.name: row for row in overload.run(seconds=2.0, idle=1.5)}
    assert found["interactive requests that were not answered"].outcome == "met"
    assert found["incomplete refusals"].outcome == "met"


def test_the_forecast_benchmark_in_its_smallest_form() -> None:
    found = [row.name for row in forecast.run(trials=2, warm_up=8, run_times=["constant"])]
    assert found == ["constant: errors by waits", "constant: outside of the spread"]


def test_missing_fields_of_a_refusal_are_found() -> None:
    whole = (
        '{"error":{"code":"queue.full","bottleneck":"b","capability":"c","position":4,"fix":"f",'
        '"starts_in":{"low":0,"p50":1,"high":2}}}'
    )
    after = {"retry-after": "1"}
    assert Answer(429, after, whole.encode(), 0.1).find_missing() == ""
    assert Answer(429, {}, whole.encode(), 0.1).find_missing() == "retry-after"
    assert Answer(500, after, b"", 0.1).find_missing() == "status 500"
    assert Answer(429, after, whole.replace('"position":4,', "").encode(), 0.1).find_missing() == "position"
    unknown = whole.replace('{"low":0,"p50":1,"high":2}', "null")
    assert Answer(503, after, unknown.encode(), 0.1).find_missing() == "starts_in"


def test_the_figures_of_a_run() -> None:
    results = RequestResults(
        [0.1] * 19 + [0.5], Counter({"interactive answered": 20, "batch queue.full": 80})
    )
    results.forecasts = [(0.0, 0.1, 0.2, 0.12), (0.0, 0.1, 0.2, 0.5)]
    late, unanswered, unsaid, off, outside = overload.make_rows(0.2, results)
    assert (late.outcome, unanswered.outcome, unsaid.outcome) == ("met", "met", "met")
    assert (off.outcome, outside.outcome) == ("missed", "missed")
    assert outside.value == 50


def test_a_figure_without_data_misses_its_goal() -> None:
    late, unanswered, _, off, outside = overload.make_rows(
        0.2, RequestResults(outcomes=Counter({"interactive x": 1}))
    )
    assert {late.outcome, unanswered.outcome, off.outcome, outside.outcome} == {"missed"}
