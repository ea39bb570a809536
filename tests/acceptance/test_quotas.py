"""Keys and quotas on a grid of real processes: refusals, their reasons, and jobs that wait."""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import gridq
from gridq import cli
from gridq.cli.commands.explain import explain_graph
from gridq.client import Client
from gridq.config.settings import Settings
from gridq.errors import (
    AgentJobsExceeded,
    AgentMoneyExceeded,
    KeyInvalid,
    KeyMissing,
    KeyRevoked,
    QuotaExceeded,
    WaitTimeout,
)
from gridq.protocol.states import JobState
from gridq.submission import inbox
from gridq.views.audit import find_keys_without_ttl
from tests.fakes.bench_profile import BENCH
from tests.grid_environment import use_grid
from tests.waiting import wait_for
from workers.supervisor.embedded_server import EmbeddedServer
from workers.supervisor.grid_processes import GridProcesses

QUOTAS = """\
[agents.ann]
monthly_dollars = 0.10

[agents.jobs-only]
monthly_jobs = 1
"""
PAID = {
    "name": "paid",
    "implementation": "bench:spend",
    "input": {"kind": "Any"},
    "output": {"kind": "Any"},
    "effects": [{"effect": "Bench"}, {"effect": "Cost", "cents": 4}],
}


@dataclass
class Grid:
    client: Client
    file: Path
    log: Path

    def write(self, text: str) -> None:
        """Replace the quotas file, as an editor does."""
        draft = self.file.with_suffix(".draft")
        draft.write_text(text)
        os.replace(draft, self.file)


@pytest.fixture(scope="module")
def grid(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grid]:
    """A router with a quotas file, and a bench seat, as processes. This process uses the same grid."""
    folder: Path = tmp_path_factory.mktemp("quotas")
    (folder / "stages").mkdir()
    (folder / "stages" / "paid.json").write_text(json.dumps(PAID))
    file = folder / "quotas.toml"
    file.write_text(QUOTAS)
    config = Settings(
        broker_url=server.url, prefix=f"w{secrets.token_hex(3)}:", home=folder / "home", profiles=(BENCH,),
        stages_dir=folder / "stages",
    )  # fmt: skip
    env = {"GRIDQ_QUOTAS": str(file), "GRIDQ_STAGES_DIR": str(folder / "stages"), "GRIDQ_DRAIN": "2"}
    with use_grid(config, env) as client, GridProcesses(config, ["bench"], folder=folder / "logs", env=env):
        yield Grid(client, file, folder / "logs")


def graph(*micro: int) -> dict[str, Any]:
    """Return a sequence of paid stages, each with its use in micro-dollars."""
    stages = [{"op": "Stage", "id": "paid", "config": {"micro_dollars": used}} for used in micro]
    return {"root": {"op": "Sequential", "stages": stages} if len(stages) > 1 else stages[0]}


def command(*words: str) -> Any:
    """Run a command and return its JSON."""
    done = CliRunner().invoke(cli.app, [*words, "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def account(name: str, what: str = "money") -> dict[str, Any]:
    accounts = command("quota")["accounts"]
    return next(found for found in accounts if (found["name"], found["what"]) == (name, what))


def test_client_and_celery_refuse_with_the_same_reason(grid: Grid) -> None:
    """Nothing of a refused job is queued, and the reason names the agent, the amount and the end."""
    refused = graph(1, 1, 1)  # estimated at 12 cents
    with pytest.raises(AgentMoneyExceeded) as direct:
        grid.client.submit(refused, {}, agent="ann")
    with pytest.raises(AgentMoneyExceeded) as celery:
        gridq.run_graph.delay(refused, {}, agent="ann").get(timeout=20)
    assert direct.value.details == celery.value.details
    assert direct.value.details["needed"] == 120_000
    assert direct.value.details["retry_at"] is None  # it alone is more than a month's
    file = grid.file.with_name("refused.json")
    file.write_text(json.dumps(refused))
    report = command("explain", str(file), "--agent", "ann")
    assert report["refusal"]["text"] == str(direct.value)
    assert (report["agent"], report["refusal"]["code"]) == ("ann", "quota.agent_money")
    assert report["refusal"]["details"].items() <= direct.value.details.items()
    shown = CliRunner().invoke(cli.app, ["explain", str(file), "--agent", "ann"]).stdout
    assert f"A job of the agent 'ann' would be refused now: {direct.value}" in shown
    assert command("explain", str(file))["refusal"] is None  # without an agent
    allowed = CliRunner().invoke(cli.app, ["explain", str(file), "--agent", "bob"]).stdout
    assert "The quota of the agent 'bob' allows the job now." in allowed
    assert account("ann")["reserved"] == 0


def test_a_spent_budget_refuses_until_the_month_turns(grid: Grid) -> None:
    before = account("ann")["used"]
    assert grid.client.run(graph(30_000), {}, 20, agent="ann") == {"micro_dollars": 30_000}
    assert account("ann")["used"] == before + 30_000
    grid.client.run(graph(35_000), {}, 20, agent="ann")
    with pytest.raises(AgentMoneyExceeded) as caught:
        grid.client.run(graph(35_000), {}, 20, agent="ann")
    assert caught.value.details["retry_at"] == account("ann")["until"]
    assert caught.value.details["retry_at"].endswith("01T00:00:00+00:00")


def test_jobs_are_counted(grid: Grid) -> None:
    grid.client.run(graph(0), {}, 20, agent="jobs-only")
    with pytest.raises(AgentJobsExceeded):
        grid.client.submit(graph(0), {}, agent="jobs-only")


def test_a_changed_file_applies_without_a_restart(grid: Grid) -> None:
    grid.write("[agents.cleo]\nmonthly_dollars = 0.09\n")
    wait_for(lambda: any(found["name"] == "cleo" for found in command("quota")["accounts"]))
    job = grid.client.submit(
        graph(100_000, 1), {}, agent="cleo"
    )  # its first stage uses more than its estimate
    wait_for(lambda: account("cleo")["parked"])
    assert grid.client.status(job) is JobState.RUNNING
    grid.write("[agents.cleo]\nmonthly_dollars = 1\n")
    assert grid.client.result(job, 20) == {"micro_dollars": 1}
    assert not account("cleo")["parked"]


def test_an_invalid_file_is_reported_and_the_old_one_applies(grid: Grid) -> None:
    grid.write("[agents.dora]\nmonthly_jobs = 0\n")
    wait_for(lambda: any(found["name"] == "dora" for found in command("quota")["accounts"]))
    grid.write("[agents.dora]\nmonthly_jobs = 5\nmonthly_joy = 1\n")
    wait_for(lambda: command("quota")["limits"]["error"])
    assert "quotas.toml:3: agents.dora.monthly_joy" in command("quota")["limits"]["error"]
    assert "agents.dora.monthly_joy" in logs(grid)
    assert "agents.dora.monthly_joy" in CliRunner().invoke(cli.app, ["quota"]).stderr
    with pytest.raises(QuotaExceeded):
        grid.client.submit(graph(0), {}, agent="dora")
    grid.write("[agents.dora]\nmonthly_jobs = 5\n")
    wait_for(lambda: not command("quota")["limits"]["error"])
    grid.client.run(graph(0), {}, 20, agent="dora")


def test_the_key_sets_the_agent_and_its_secret_is_stored_nowhere(
    grid: Grid, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = command("keys", "create", "--agent", "eve")
    key = made["key"]
    try:
        with pytest.raises(KeyMissing):
            gridq.run_graph.delay(graph(0), {})
        with pytest.raises(KeyMissing):
            grid.client.submit(graph(0), {}, agent="eve")
        with pytest.raises(KeyInvalid):
            gridq.run_graph.delay(graph(0), {}, key=key[:-4] + "AAAA")
        by_celery = gridq.run_graph.delay(graph(0), {}, agent="ann", key=key)
        assert by_celery.get(timeout=20)
        direct = grid.client.submit(graph(0), {}, agent="ann", key=key)
        grid.client.result(direct, 20)
        file = grid.file.with_name("keyed.json")
        file.write_text(json.dumps(graph(0)))
        report = command("explain", str(file))
        assert (report["agent"], report["refusal"]["code"]) == (None, "auth.key_missing")
        monkeypatch.setenv("GRIDQ_KEY", key)
        there = grid.client.config
        config = Settings(
            broker_url=grid.client.url, prefix=there.prefix, profiles=(BENCH,), stages_dir=there.stages_dir
        )
        own = Client(config=config)
        report = explain_graph(own, json.dumps(graph(0)), config)
        assert (report["agent"], report["refusal"]) == ("eve", None)
        own.run(graph(0), {}, 20)
        assert account("eve", "jobs")["used"] == 3
        everything = stored(grid.client)
        assert key.split("_")[1] in everything
        assert key.split("_", 2)[2] not in everything
        assert key not in repr(own.config)
        assert key.split("_", 2)[2] not in logs(grid)
        command("keys", "revoke", made["id"])
        with pytest.raises(KeyRevoked):
            own.submit(graph(0), {})
        with pytest.raises(KeyRevoked):
            gridq.run_graph.delay(graph(0), {}, key=key)
        own.close()
    finally:
        command("keys", "revoke", made["id"], "--forget")


def test_a_key_revoked_before_admission_is_refused(grid: Grid) -> None:
    """The router checks the key again: a job in the inbox does not run after its key is revoked."""
    made = command("keys", "create", "--agent", "eve")
    try:
        about = inbox.get_default_inbox()
        about.enqueue("late-job", graph(0), {}, celery=True, key=made["key"])
        command("keys", "revoke", made["id"])
        with pytest.raises(KeyRevoked):
            grid.client.result("late-job", 20)
    finally:
        command("keys", "revoke", made["id"], "--forget")


def test_a_seat_over_its_limits_wakes_by_itself(grid: Grid) -> None:
    """No wake-up is sent: the seat's own renewal finds that the minute, or the window, is over."""
    redis, keys = grid.client.redis, grid.client.keys
    (seat,) = [ad.seat for ad in grid.client.workers()]
    grid.write(f'[seats."{seat}"]\nrequests_per_minute = 1\n')
    wait_for(lambda: redis.hget(keys("seat", seat), "quota_requests_per_minute") == b"1")
    redis.delete(keys("claim_times", seat))
    grid.client.run(graph(0), {}, 20, agent="fay")
    waits = grid.client.submit(graph(0), {}, agent="fay")
    with pytest.raises(WaitTimeout):
        grid.client.result(waits, 1.5)
    (before,) = redis.lrange(keys("claim_times", seat), 0, -1)
    redis.lset(keys("claim_times", seat), 0, str(int(before) - 60_000))
    grid.client.result(waits, 20)

    grid.write(f'[seats."{seat}"]\nbudget_dollars = 0.1\nperiod = "day"\n')
    wait_for(lambda: b"/100000/0/0/" in (redis.hget(keys("seat", seat), "grid") or b""))
    grid.client.run(graph(100_000), {}, 20, agent="fay")  # all of it
    assert account(seat, "grid money a day")["left"] == 0
    waits = grid.client.submit(graph(0), {}, agent="fay")
    with pytest.raises(WaitTimeout):
        grid.client.result(waits, 1.5)
    over = re.sub(rb"\d+$", b"1", redis.hget(keys("seat", seat), "grid"))
    redis.hset(keys("seat", seat), "grid", over)  # the day is over
    grid.client.result(waits, 20)


def test_every_key_has_a_ttl(grid: Grid) -> None:
    assert find_keys_without_ttl(grid.client.redis, grid.client.config.prefix) == []


def logs(grid: Grid) -> str:
    return "".join(file.read_text(errors="replace") for file in grid.log.rglob("*") if file.is_file())


def stored(client: Client) -> str:
    """Return all data of the grid on the server, as text."""
    redis: Any = client.redis
    reads = {
        b"string": redis.get,
        b"hash": redis.hgetall,
        b"list": lambda key: redis.lrange(key, 0, -1),
        b"set": redis.smembers,
        b"zset": lambda key: redis.zrange(key, 0, -1),
        b"stream": redis.xrange,
    }
    names = list(redis.scan_iter(f"{client.config.prefix}*", count=1000))
    return "\n".join(f"{name!r} {reads[redis.type(name)](name)!r}" for name in names if redis.exists(name))


def test_the_ledger_has_every_attempt(grid: Grid) -> None:
    """The entries have the tokens that the worker reported, and all counters equal their sums."""
    usage = {"micro_dollars": 70, "tokens_in": 12, "tokens_out": 34}
    paid = {"root": {"op": "Stage", "id": "paid", "config": usage}}
    job = grid.client.submit(paid, {}, agent="gil")
    grid.client.result(job, 20)
    lines = CliRunner().invoke(cli.app, ["ledger", "export"]).stdout.splitlines()
    entries = [entry for entry in map(json.loads, lines) if entry["job"] == job]
    assert [entry["what"] for entry in entries] == ["job", "done"]
    assert {name: entries[1][name] for name in usage} == usage
    assert (entries[1]["agent"], entries[1]["charged"]) == ("gil", "agent")
    found = command("ledger", "verify")
    assert (found["differences"], found["notes"]) == ([], [])
    assert found["counters"] > 4
