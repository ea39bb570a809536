"""The audit finds each corrupted record and names the broken rule."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from typer.testing import CliRunner

from gridq import cli
from gridq.app import app
from gridq.errors import GridBusy
from gridq.messaging import wake_ups
from gridq.protocol.states import JobState
from gridq.views import audit
from tests.conftest import GridEnv
from tests.unit.store.plans import Grid, chain, wide


@pytest.fixture
def grid(grid_env: GridEnv) -> Grid:
    """Two seats; one job runs, with a stage leased and one pending; one waits in the inbox; one has ended."""
    made = Grid(grid_env.client, grid_env.settings)
    wake_ups.write_templates(app, made.client, made.keys)
    made.seat("m.a", concurrency=2)
    made.seat("m.b", budget=1_000_000)
    made.job(chain(1), "ended")
    made.done(made.take())
    made.job(wide(2), "runs")
    made.take()
    made.enqueue("queued")
    return made


def list_breaches(grid: Grid, *, idle: bool = False) -> list[str]:
    return [line for each in audit.run_audit(grid.client, grid.keys, idle=idle) for line in each.breaches]


def test_a_working_grid_has_no_breaches(grid: Grid) -> None:
    assert list_breaches(grid) == []
    assert "the lease" in " ".join(list_breaches(grid, idle=True))


def test_an_idle_grid_has_nothing_left(grid: Grid) -> None:
    for job in "runs", "queued":
        grid.scripts.stop(job, "cancelled", "{}")
    grid.client.delete(grid.keys("answers"))
    grid.clear("bench:any", "gridq:pure", "seat:m.a", "seat:m.b")
    assert list_breaches(grid, idle=True) == []
    # A wake-up stands for the next seat that serves its queue; one where a seat should have answered is left.
    for queue in ("bench:rare", "gridq:router"):
        grid.client.rpush(f"{grid.keys.prefix}{queue}", "wake_up")
    assert list_breaches(grid, idle=True) == []
    grid.seat("m.router", "gridq:pure")
    assert list_breaches(grid, idle=True) == ["1 wake-ups in gridq:router"]
    grid.clear("gridq:router")
    for queue in ("bench:any", "seat:m.a"):
        grid.client.rpush(f"{grid.keys.prefix}{queue}", "wake_up")
    assert list_breaches(grid, idle=True) == ["1 wake-ups in bench:any", "1 wake-ups in seat:m.a"]


@pytest.mark.parametrize("timer", ["queue timeout", "deadline"])
def test_an_expired_step_waits_for_the_sweep(grid: Grid, timer: str) -> None:
    grid.job(chain(1), "late", queue_timeout_ms=60_000)
    grid.age(*(("delays", "queue_timeout:late:0:0.0") if timer == "queue timeout" else ("deadlines", "late")))
    if timer == "deadline":
        grid.client.hset(grid.keys("job", "late"), "deadline", 1)
    grid.take(slot="1")  # the older stage, of the job that runs
    grid.scripts.stop("runs", "cancelled", "{}")
    assert grid.claim() == "none"
    assert grid.pending() == []
    assert list_breaches(grid) == []
    grid.sweep()
    assert grid.ended("late").state is JobState.EXPIRED
    assert list_breaches(grid) == []


def lease(grid: Grid) -> str:
    found: list[bytes] = grid.client.zrange(grid.keys("leases"), 0, -1)
    return found[0].decode()


SPOILT: dict[str, Callable[[Grid], object]] = {
    "is not in lease_info": lambda grid: grid.client.hdel(grid.keys("lease_info"), lease(grid)),
    "is not in slots": lambda grid: grid.client.delete(grid.keys("slots", "m.a")),
    "is not in leases": lambda grid: grid.client.zrem(grid.keys("leases"), lease(grid)),
    "holds 3 of 2 slots": lambda grid: grid.client.hset(
        grid.keys("slots", "m.a"), mapping={"8": "j:0:0:1:n", "9": "j:1:0:1:n"}
    ),
    "is held by": lambda grid: grid.client.hset(grid.keys("lease_info"), lease(grid), "m.b 0 0"),
    "counts 5, 1 wait": lambda grid: grid.client.hset(grid.keys("classes", "bench:any"), "0/0|", 5),
    "and has no stage": lambda grid: grid.client.zadd(grid.keys("ready", "bench:any", "0/0|"), {"nobody": 1}),
    "is not in ready": lambda grid: grid.client.delete(grid.keys("ready", "bench:any", "0/0|")),
    "the sweep does not know it": lambda grid: grid.client.delete(grid.keys("queues")),
    "is nowhere": lambda grid: grid.client.hdel(grid.keys("job", "runs"), "dependencies:2"),
    "done and": lambda grid: grid.client.hset(grid.keys("job", "runs"), "output:1", "1"),
    "unfinished is 7": lambda grid: grid.client.hset(grid.keys("job", "runs"), "unfinished", 7),
    "of a job that is gone": lambda grid: grid.client.unlink(grid.keys("job", "runs")),
    "runs has no deadline": lambda grid: grid.client.zrem(grid.keys("deadlines"), "runs"),
    "queued has no deadline": lambda grid: grid.client.zrem(grid.keys("deadlines"), "queued"),
    "not in the inbox": lambda grid: grid.client.zrem(grid.keys("inbox"), "queued"),
    "not queued": lambda grid: grid.client.unlink(grid.keys("submitted", "queued")),
    "running and ended": lambda grid: grid.client.rpush(grid.keys("result", "runs"), "done\n1"),
    "2 ends": lambda grid: grid.client.rpush(grid.keys("result", "ended"), "failed\n{}"),
    "has no state": lambda grid: grid.client.unlink(grid.keys("result", "ended")),
    "it has not ended": lambda grid: grid.client.zadd(grid.keys("answers"), {"runs": 1}),
    "has 5 reserved": lambda grid: grid.client.hset(grid.keys("reserved"), "a:ann", 5),
    "is gone and has reserved": lambda grid: grid.client.hset(grid.keys("reservations"), "gone", "ann - 5"),
    "summary:ended": lambda grid: grid.client.persist(grid.keys("summary", "ended")),
    "strange": lambda grid: grid.client.set(grid.keys("strange"), 1),
}


@pytest.mark.parametrize("expected", SPOILT)
def test_corrupted_records_are_found(grid: Grid, expected: str) -> None:
    SPOILT[expected](grid)
    assert expected in " | ".join(list_breaches(grid))


def test_the_audit_writes_nothing(grid: Grid) -> None:
    before = {key: grid.client.dump(key) for key in grid.client.scan_iter(f"{grid.keys.prefix}*")}
    list_breaches(grid, idle=True)
    assert {key: grid.client.dump(key) for key in grid.client.scan_iter(f"{grid.keys.prefix}*")} == before


def test_keys_of_other_grids_and_programs_are_ignored(grid: Grid) -> None:
    begun = grid.keys.prefix[:-3]
    grid.client.set(f"{begun}.strange", 1, ex=60)
    assert grid.client.hexists(f"{grid.keys.own}lease_info", lease(grid))  # it has no TTL
    assert audit.find_keys_without_ttl(grid.client, begun) == []
    grid.client.persist(f"{begun}.strange")
    assert audit.find_keys_without_ttl(grid.client, begun) == [".strange"]
    grid.client.unlink(f"{begun}.strange")


def test_an_audit_over_the_item_limit_is_refused(grid: Grid) -> None:
    """The server is blocked while it reads: all keys count, those of ended jobs and other programs, too."""
    for most in (1, grid.client.dbsize() + 20):
        with pytest.raises(GridBusy):
            audit.run_audit(grid.client, grid.keys, max_items=most)
    assert audit.run_audit(grid.client, grid.keys, max_items=20 * grid.client.dbsize())


def test_audit_prints_each_rule_and_exits_with_1_on_breaches(grid: Grid) -> None:
    good = CliRunner().invoke(cli.app, ["audit"])
    assert good.exit_code == 0, good.output
    assert all(line.startswith("ok ") for line in good.stdout.splitlines())
    grid.client.hset(grid.keys("job", "runs"), "unfinished", 7)
    bad = CliRunner().invoke(cli.app, ["audit", "--json"])
    assert bad.exit_code == 1
    checks = json.loads(bad.stdout)["checks"]
    assert [each["rule"] for each in checks if each["breaches"]] == [
        "each step of a running job is in exactly one place"
    ]
    left = CliRunner().invoke(cli.app, ["audit", "--idle"])
    assert left.exit_code == 1
    assert "breach  nothing is left of jobs that ran" in left.stdout


@pytest.mark.parametrize("key", ["job:runs", "seat:m.a", "classes:bench:any", "leases", "result:ended"])
def test_a_key_that_holds_something_else_is_named(grid: Grid, key: str) -> None:
    grid.client.delete(grid.keys(key))
    grid.client.set(grid.keys(key), "text", px=60_000)
    checks = audit.run_audit(grid.client, grid.keys)
    [unreadable] = [each for each in checks if each.rule == "each key holds what it should"]
    assert [line.partition(": ")[0] for line in unreadable.breaches] == [key]
    grid.client.delete(grid.keys(key))


def test_a_number_that_is_none_is_a_breach(grid: Grid) -> None:
    grid.client.hset(grid.keys("seat", "m.a"), "concurrency", "many")
    assert any("many" in line for line in list_breaches(grid))
