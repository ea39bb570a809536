"""`gridq worker`, `gridq token` and `gridq join`: a second machine, with a home and an id of its own."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.homes import HomeFolder, port_of
from tests.fakes.bench_profile import BENCH
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

TWO = '[[bench]]\nname = "one"\n[[bench]]\nname = "two"\n'


@pytest.fixture
def grid(tmp_path: Path) -> Iterator[HomeFolder]:
    """A grid with a router and only the seat `local`: bench stages need another machine."""
    folder = tmp_path / "grid"
    folder.mkdir()
    home = HomeFolder(folder)
    try:
        home.start("up", "--no-flower", "--no-gateway", "--seat", "local")
        home.ready()
        yield home
    finally:
        home.end()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[HomeFolder]:
    """A machine with two bench seats, which has not joined a grid."""
    folder = tmp_path / "machine"
    folder.mkdir()
    home = HomeFolder(folder, TWO)
    yield home
    home.end()


def url_of(grid: HomeFolder) -> str:
    return f"redis://127.0.0.1:{port_of(grid.state('grid'))}/0"


def token_of(grid: HomeFolder, *options: str) -> str:
    made = grid("token", "create", *options)
    assert made.returncode == 0, made.stderr
    return made.stdout.strip()


def seats(grid: HomeFolder) -> set[str]:
    return {seat["worker"] for seat in grid.json("status")["grid"]["seats"]}


def test_a_machine_joins_serves_reloads_and_leaves(grid: HomeFolder, machine: HomeFolder) -> None:
    token = token_of(grid)
    (machine.folder / "token").write_text(token + "\n")
    worker = machine.start("join", url_of(grid), "--token", f"@{machine.folder / 'token'}")
    state = machine.ready("worker")
    assert stat.S_IMODE((machine.path / "config.toml").stat().st_mode) == 0o600
    assert f'profiles = ["{BENCH}"]' in (machine.path / "config.toml").read_text(), "earlier settings stay"
    assert [part["name"] for part in state["parts"]] == ["local", "one", "two"]
    assert token not in machine.read_log()
    there = state["machine"]
    assert {f"{name}@{there}" for name in ("local", "one", "two")} < seats(grid)
    assert grid.echo("from the grid") == "from the grid"
    assert machine.echo("from the machine") == "from the machine"

    again = machine("worker")
    assert again.returncode == 2
    assert f"gridq worker already runs in {machine.path}, as process {worker.pid}" in again.stderr

    unchanged, changed = machine.part("local", "worker")["pid"], machine.part("two", "worker")["pid"]
    (machine.path / "seats.toml").write_text(
        '[[bench]]\nname = "three"\n[[bench]]\nname = "two"\nconcurrency = 3\n'
    )
    worker.send_signal(signal.SIGHUP)
    wait_for(lambda: "Reloaded: " in machine.read_log())
    assert "started three; stopped one; restarted two" in machine.read_log()
    wait_for(lambda: seats(grid) >= {f"three@{there}", f"two@{there}"} and f"one@{there}" not in seats(grid))
    assert machine.part("local", "worker")["pid"] == unchanged
    assert machine.restarted("two", changed, "worker")
    assert machine.part("two", "worker")["restarts"] == 0

    (machine.path / "seats.toml").write_text("[bench")
    worker.send_signal(signal.SIGHUP)
    wait_for(lambda: "Not reloaded, nothing has changed" in machine.read_log())
    assert machine.part("local", "worker")["pid"] == unchanged

    one = machine.part("three", "worker")["pid"]
    os.kill(one, signal.SIGKILL)
    machine.restarted("three", one, "worker")

    worker.send_signal(signal.SIGTERM)
    assert worker.wait(30) == 0
    assert machine.processes() == []
    assert seats(grid) == {f"local@{grid.state('grid')['machine']}"}
    assert "Traceback" not in machine.read_log()


def test_status_of_a_machine_that_only_serves(grid: HomeFolder, machine: HomeFolder) -> None:
    machine.start("join", url_of(grid), "--token", token_of(grid), "--seat", "two")
    machine.ready("worker")
    status = machine("status")
    assert status.returncode == 0
    for word in ("gridq worker: process", "two", "Valkey", "local"):
        assert word in status.stdout
    [state] = machine.json("status")["running"]
    assert [part["name"] for part in state["parts"]] == ["two"]


def test_a_token_works_once_and_its_refusal_has_a_reason(grid: HomeFolder, machine: HomeFolder) -> None:
    token, other = token_of(grid), token_of(grid, "--ttl", "2d", "--uses", "3")
    before = (machine.path / "config.toml").read_text()

    def join(text: str, url: str = url_of(grid)) -> str:
        done = machine("join", url, "--token", "-", "--no-start", stdin=text)
        assert done.returncode == 2, done.stdout
        assert len(done.stderr.strip().splitlines()) == 1
        assert (machine.path / "config.toml").read_text() == before
        return done.stderr

    assert "join.token: This is not a join token" in join("gqjoin_e30")
    assert "broker.unreachable" in join(token, "redis://127.0.0.1:1/0")
    assert "The server's URL is invalid (at URL)" in join(token, "127.0.0.1")
    done = machine("join", url_of(grid), "--token", "-", "--no-start", stdin=token)
    assert done.returncode == 0, done.stderr
    before = (machine.path / "config.toml").read_text()
    assert "it is used up" in join(token)

    rows = grid.json("token", "list")
    assert {row["id"]: row["left"] for row in rows} == {rows[0]["id"]: 0, rows[1]["id"]: 3}
    assert grid("token", "revoke", rows[1]["id"]).returncode == 0
    assert "it has expired, was revoked" in join(other)
    assert grid("token", "revoke", rows[1]["id"]).returncode == 2


def test_a_copied_home_is_refused(grid: HomeFolder, machine: HomeFolder) -> None:
    (machine.path / "machine").write_text((grid.path / "machine").read_text())
    token = token_of(grid)
    done = machine("join", url_of(grid), "--token", token, "--no-start")
    assert done.returncode == 2
    assert "is in use from another home folder of this host" in done.stderr
    assert f"delete {machine.path / 'machine'}" in done.stderr
    (machine.path / "machine").unlink()
    assert machine("join", url_of(grid), "--token", token, "--no-start").returncode == 0, "it was not spent"


def test_a_home_that_others_may_write_is_refused(grid: HomeFolder, machine: HomeFolder) -> None:
    machine.path.chmod(0o777)
    done = machine("join", url_of(grid), "--token", token_of(grid), "--no-start")
    machine.path.chmod(0o700)
    assert done.returncode == 2
    assert f"chmod go-w {machine.path}" in done.stderr
