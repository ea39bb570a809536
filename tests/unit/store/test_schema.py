"""Two versions of the scripts on one server: the same schema, or one of them is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis

from gridq.config.settings import Settings
from gridq.errors import SchemaMismatch
from gridq.store import schema, scripts
from gridq.store.replies import Accepted, AdmitReply
from gridq.store.scripts import Scripts
from tests.conftest import GridEnv
from tests.pieces import emit
from tests.unit.store.plans import Grid, one

pytestmark = pytest.mark.usefixtures("key_hygiene")


def make_scripts(number: int, client: Redis, config: Settings) -> Scripts:
    """The scripts as a gridq of that schema has them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schema, "SCHEMA", number)
        return Scripts(client, config)


@pytest.fixture
def newer(grid: Grid) -> Scripts:
    return make_scripts(schema.SCHEMA + 1, grid.client, grid.config)


@pytest.fixture
def older(grid: Grid) -> Scripts:
    return make_scripts(schema.SCHEMA - 1, grid.client, grid.config)


def _register(which: Scripts, seat: str = "m.new") -> None:
    which.register(seat, "i1", host="h1", concurrency=1, queues=["bench:any"], record_ttl_ms=3_600_000)


def _enqueue(which: Scripts, value: bytes = b"1") -> Any:
    return which.enqueue(
        "j9", agent="ann", deadline_ms=3_600_000, result_ttl_ms=60_000, celery=False, stream=False,
        graph=b"{}", input=value, options=b"{}",
    )  # fmt: skip


def _admit(which: Scripts, value: bytes = b"1") -> AdmitReply:
    made = Grid(which.client, which.config)
    made.scripts = which
    return made.admit(one(), "j9", value=value)


BEGINNINGS: dict[str, Callable[[Scripts], Any]] = {
    "enqueue": _enqueue,
    "admit": _admit,
    "register": _register,
    "stop": lambda which: which.stop("j1", "cancelled", "{}"),
    "sweep": lambda which: which.sweep(),
    "apply_limits": lambda which: which.apply_limits("", "", {}),
    "adopt_schema": lambda which: which.run("adopt_schema"),
}


def state(grid: Grid) -> dict[str, Any]:
    """All keys of the grid but the note of who asked to start."""
    return {name: grid.client.dump(f"{grid.keys.own}{name}") for name in grid.own() if name != "upgrade"}


@pytest.mark.parametrize("name", BEGINNINGS)
@pytest.mark.parametrize("version", ["newer", "older"])
def test_another_schema_version_is_refused_and_writes_nothing(
    grid: Grid, name: str, version: str, request: pytest.FixtureRequest
) -> None:
    other: Scripts = request.getfixturevalue(version)
    grid.seat()
    grid.job(one(), "j1")
    before = state(grid)
    with pytest.raises(SchemaMismatch) as caught:
        BEGINNINGS[name](other)
    assert caught.value.details["grid"] == schema.SCHEMA
    assert (caught.value.details["seats"], caught.value.details["jobs"]) == (1, 1)
    assert state(grid) == before
    grid.done(grid.take())


def test_processes_of_the_same_schema_work_together(grid: Grid) -> None:
    other = make_scripts(schema.SCHEMA, grid.client, grid.config)
    grid.seat()
    _register(other)
    assert _admit(other) == Accepted()
    other.sweep()


@pytest.mark.parametrize("begin", [_enqueue, _admit, _register])
def test_the_first_process_on_an_empty_grid_sets_the_schema(grid: Grid, begin: Any) -> None:
    begin(grid.scripts)
    assert grid.client.get(grid.keys("schema")) == str(schema.SCHEMA).encode()


def test_a_newer_schema_replaces_an_idle_one(grid: Grid, newer: Scripts) -> None:
    grid.seat()
    grid.job(one())
    grid.done(grid.take())
    grid.scripts.leave("m.a", "i1", "go")
    newer.adopt()
    _register(newer)
    with pytest.raises(SchemaMismatch, match="install the version") as caught:
        grid.seat("m.b")
    assert caught.value.details["grid"] == schema.SCHEMA + 1
    newer.leave("m.new", "i1", "go")
    with pytest.raises(SchemaMismatch):
        grid.seat("m.b")
    assert grid.client.get(grid.keys("schema")) == str(schema.SCHEMA + 1).encode(), "lowered"
    grid.client.delete(grid.keys("schema"))


@pytest.mark.parametrize("where", ["inbox", "pending", "running"])
def test_a_newer_schema_waits_for_older_jobs(grid: Grid, newer: Scripts, where: str) -> None:
    grid.seat()
    if where == "inbox":
        grid.enqueue("j1")
    else:
        grid.job(one(), "j1")
    if where == "running":
        grid.take()
    grid.scripts.leave("m.a", "i1", "go")
    with pytest.raises(SchemaMismatch, match="finish its jobs"):
        newer.adopt()


def test_a_newer_schema_waits_for_killed_seats(grid_env: GridEnv) -> None:
    config = grid_env.settings.model_copy(update={"lease_ms": 300, "renew_ms": 100})
    grid = Grid(grid_env.client, config)
    newer = make_scripts(schema.SCHEMA + 1, grid.client, config)
    grid.seat()
    newer.adopt()
    assert grid.client.get(grid.keys("schema")) == str(schema.SCHEMA + 1).encode()


def test_a_seat_that_could_not_renew_is_not_dead(grid: Grid, newer: Scripts) -> None:
    """The server was away: every lease has lapsed, and each holder may still renew."""
    grid.seat()
    grid.age("seats", "m.a")
    with pytest.raises(SchemaMismatch):
        newer.run("adopt_schema")
    since, _ = grid.client.get(grid.keys("upgrade")).split()
    # A lease later, but with a gap: the server may have been away again.
    gap = int(since) - grid.config.lease_ms
    grid.client.set(grid.keys("upgrade"), f"{gap} {gap}", px=60_000)
    with pytest.raises(SchemaMismatch):
        newer.run("adopt_schema")
    # A lease later, having asked all the time.
    grid.client.set(grid.keys("upgrade"), f"{gap} {grid.now()}", px=60_000)
    assert grid.scripts.renew("m.a", "i1", []) == []
    with pytest.raises(SchemaMismatch):
        newer.run("adopt_schema")
    grid.age("seats", "m.a")
    assert newer.run("adopt_schema") == 1
    assert grid.scripts.renew("m.a", "i1", []) == [], "it may: its incarnation is still there"
    with pytest.raises(SchemaMismatch):
        grid.seat()


def test_a_worker_of_the_older_schema_gets_nothing_after_an_upgrade(grid: Grid, newer: Scripts) -> None:
    grid.seat()
    grid.job(one(), "j1")
    claim = grid.take()
    grid.scripts.stop("j1", "cancelled", "{}")
    grid.scripts.leave("m.a", "i1", "go")
    newer.adopt()
    _register(newer)
    assert _admit(newer) == Accepted()
    before = state(grid)
    assert grid.scripts.renew("m.a", "i1", [claim.lease]) is None
    assert grid.claim() == "gone"
    assert grid.complete(claim, b"@j1:0:1", long=b"x" * 100_000)[0] in (0, -1)
    assert grid.fail(claim) == "fenced"
    assert not emit(grid.scripts, claim.lease, "root", ['"x"'], 0)
    after = state(grid)
    older_keys = {
        name for name in before if not name.startswith("closed_lease:") and name != "wake_up_number"
    }  # a wake-up is a hint
    assert {name for name in older_keys if after[name] != before[name]} == set()
    newer.stop("j9", "cancelled", "{}")


@pytest.mark.parametrize("begin", [_enqueue, _admit])
def test_the_long_input_of_a_refused_submission_is_dropped(grid: Grid, newer: Scripts, begin: Any) -> None:
    grid.seat()
    grid.client.set(grid.keys("value", "j9:in"), b"x" * 70_000, px=60_000)
    with pytest.raises(SchemaMismatch):
        begin(newer, b"@j9:in")
    assert not grid.client.exists(grid.keys("value", "j9:in"))


def test_scripts_that_begin_work_check_the_schema() -> None:
    checking = {name for name in scripts.NAMES if "SCHEMA " in scripts.build_source(name, ())}
    assert checking == {*BEGINNINGS, "quarantine"}


def test_api_keys_are_carried_over_from_schema_4(grid: Grid) -> None:
    """A grid with API keys must not be open after an upgrade."""
    grid.client.set(grid.keys("schema"), "4")
    grid.client.hset(grid.keys("keys"), "k1", "a key")
    grid.scripts.adopt()
    assert grid.client.get(grid.keys("schema")) == str(schema.SCHEMA).encode()
    assert grid.client.hgetall(grid.keys("api_keys")) == {b"k1": b"a key"}
    assert not grid.client.exists(grid.keys("keys"))
