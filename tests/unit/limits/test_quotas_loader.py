"""A router's quotas file: in force when it starts and when it changes, never where it is wrong."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gridq.config.settings import Settings
from gridq.errors import QuotasFileError
from gridq.limits.accounts import ORPHANED_MS, ActiveLimits, read_accounts
from gridq.limits.quotas_loader import QuotasEnforcer, lift
from gridq.store.connection import now_ms
from gridq.store.scripts import Scripts
from tests.conftest import GridEnv

pytestmark = pytest.mark.usefixtures("key_hygiene")


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Capture the log of routers."""
    with caplog.at_level(logging.INFO, "gridq.limits.quotas_loader"):
        yield caplog


def router(env: GridEnv, file: Path | None = None, zone: str = "UTC") -> QuotasEnforcer:
    config: Settings = env.settings.model_copy(update={"quotas": file, "timezone": zone})
    limiting = QuotasEnforcer(Scripts(env.client, config), config)
    limiting.start()
    limiting.stop()  # a test looks by hand
    return limiting


def limits(env: GridEnv) -> dict[str, int | None]:
    """The jobs that each agent may submit."""
    scripts = Scripts(env.client, env.settings)
    accounts = read_accounts(env.client, scripts.keys, "UTC").accounts
    return {one.name: one.limit for one in accounts if one.what == "jobs"}


def write(path: Path, text: str) -> Path:
    draft = path.with_suffix(".draft")
    draft.write_text(text)
    os.replace(draft, path)
    return path


def test_a_grid_without_quotas_and_keys_logs_single_tenant(
    grid_env: GridEnv, log: pytest.LogCaptureFixture
) -> None:
    limiting = router(grid_env)
    limiting.run_once()
    assert log.text.count("single-tenant") == 1
    found = read_accounts(grid_env.client, limiting.scripts.keys, "UTC")
    assert found.is_single_tenant
    assert found.accounts == ()


def test_a_router_with_a_wrong_file_does_not_start(grid_env: GridEnv, tmp_path: Path) -> None:
    with pytest.raises(QuotasFileError, match=r"q\.json:1: ann"):
        router(grid_env, write(tmp_path / "q.json", '{"ann": -1}'))
    assert not limits(grid_env)


def test_a_changed_file_is_applied_and_an_invalid_one_is_not(
    grid_env: GridEnv, tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    file = write(tmp_path / "q.toml", "[agents.ann]\nmonthly_jobs = 1")
    limiting = router(grid_env, file)
    assert limits(grid_env) == {"ann": 1}
    write(file, "[agents.ann]\nmonthly_jobs = 2")
    limiting.run_once()
    assert limits(grid_env) == {"ann": 2}
    for wrong in ("[agents.ann]\nmonthly_jobs = x", "[agents.ann]\nmonthly_job = 3"):
        write(file, wrong)
        limiting.run_once()
        limiting.run_once()
        assert limits(grid_env) == {"ann": 2}
        read_limits = read_accounts(grid_env.client, limiting.scripts.keys, "UTC").active_limits
        assert read_limits is not None
        assert "q.toml:2" in read_limits.error
    assert log.text.count("has an error") == 2
    file.unlink()
    limiting.run_once()
    assert limits(grid_env) == {"ann": 2}
    write(file, "[agents.ann]\nmonthly_jobs = 2")
    limiting.run_once()
    read_limits = read_accounts(grid_env.client, limiting.scripts.keys, "UTC").active_limits
    assert read_limits is not None
    assert read_limits.error == ""


def test_limits_that_the_server_lost_are_restored(grid_env: GridEnv, tmp_path: Path) -> None:
    limiting = router(grid_env, write(tmp_path / "q.json", '{"ann": 5}'))
    assert lift(limiting.scripts)
    assert not limits(grid_env)
    limiting.run_once()
    assert "ann" in limits(grid_env)


def test_a_router_without_a_file_leaves_others_limits_alone(
    grid_env: GridEnv, tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    router(grid_env, write(tmp_path / "q.json", '{"ann": 5}'))
    router(grid_env).run_once()
    assert "ann" in limits(grid_env)
    assert "limits of another router are in force" in log.text


def test_differing_quotas_files_are_logged_once_and_do_not_alternate(
    grid_env: GridEnv, tmp_path: Path, log: pytest.LogCaptureFixture
) -> None:
    one = router(grid_env, write(tmp_path / "a.json", '{"ann": 5}'))
    two = router(grid_env, write(tmp_path / "b.json", '{"bob": 5}'))
    for _ in range(3):
        one.run_once()
        two.run_once()
    assert set(limits(grid_env)) == {"bob"}
    assert log.text.count("another router has a different quotas file") == 1


def read_limits(env: GridEnv) -> ActiveLimits:
    found = read_accounts(env.client, Scripts(env.client, env.settings).keys, "UTC").active_limits
    assert found is not None
    return found


def age_limits(env: GridEnv, ms: int) -> None:
    """The limits in force were last upheld so long ago."""
    key = Scripts(env.client, env.settings).keys("limits")
    seen_at = now_ms(env.client) - ms
    env.client.hset(key, "seen_at", seen_at)


def test_limits_without_a_holding_router_are_orphaned(grid_env: GridEnv, tmp_path: Path) -> None:
    first = router(grid_env, write(tmp_path / "a.json", '{"ann": 5}'))
    assert not read_limits(grid_env).is_orphaned
    age_limits(grid_env, ORPHANED_MS + 1000)
    assert read_limits(grid_env).is_orphaned
    before = now_ms(grid_env.client)
    first.run_once()
    found = read_limits(grid_env)
    assert not found.is_orphaned
    assert found.last_seen is not None
    assert found.last_seen >= before
    router(grid_env).run_once()  # without a file it upholds nothing
    age_limits(grid_env, ORPHANED_MS + 1000)
    router(grid_env).run_once()
    assert read_limits(grid_env).is_orphaned


def test_a_router_confirms_only_the_limits_of_its_own_file(grid_env: GridEnv, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    other = router(grid_env, write(tmp_path / "b.json", '{"bob": 5}'))
    router(grid_env, write(gone / "a.json", '{"ann": 5}'))
    age_limits(grid_env, ORPHANED_MS + 1000)
    other.run_once()
    found = read_limits(grid_env)
    assert found.is_orphaned
    assert found.holder.endswith("gone/a.json")
    router(grid_env, write(tmp_path / "copy.json", '{"ann": 5}'))
    other.run_once()
    assert not read_limits(grid_env).is_orphaned
    assert read_limits(grid_env).source.endswith("copy.json")


def test_a_router_with_a_copy_of_the_file_confirms_its_limits(grid_env: GridEnv, tmp_path: Path) -> None:
    copy = router(grid_env, write(tmp_path / "copy.json", '{"ann": 5}'))
    router(grid_env, write(tmp_path / "first.json", '{"ann": 5}'))
    age_limits(grid_env, ORPHANED_MS + 1000)
    copy.run_once()
    found = read_limits(grid_env)
    assert not found.is_orphaned
    assert found.source.endswith("first.json")
    assert found.holder.endswith("copy.json")


def test_lifted_limits_are_not_restored_by_a_confirmation(grid_env: GridEnv, tmp_path: Path) -> None:
    limiting = router(grid_env, write(tmp_path / "q.json", '{"ann": 5}'))
    lift(limiting.scripts)
    assert limiting.scripts.confirm_limits("another", "m:q.json") == ""
    assert not grid_env.client.exists(limiting.scripts.keys("limits"))


def test_the_first_time_zone_stays_and_a_change_is_logged(
    grid_env: GridEnv, log: pytest.LogCaptureFixture
) -> None:
    first = router(grid_env, zone="Europe/Berlin")
    assert read_accounts(grid_env.client, first.scripts.keys, "UTC").zone == "Europe/Berlin"
    router(grid_env, zone="Asia/Tokyo")
    assert read_accounts(grid_env.client, first.scripts.keys, "UTC").zone == "Asia/Tokyo"
    first._calendar_due = 0.0
    first.run_once()
    assert read_accounts(grid_env.client, first.scripts.keys, "UTC").zone == "Asia/Tokyo"
    assert log.text.count("windows have reset in the time zone") == 2
