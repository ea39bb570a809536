"""Settings from the environment, and from the files that it names."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path

import pytest

from gridq.config.settings import Settings, settings
from gridq.config.urls import add_password
from gridq.errors import ConfigError


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch):
    for name in ("BROKER_URL", "BROKER_PASSWORD", "BROKER_URL_FILE", "BROKER_PASSWORD_FILE", "LOG_LEVEL"):
        monkeypatch.delenv(f"GRIDQ_{name}", raising=False)
    settings.cache_clear()
    yield
    settings.cache_clear()


def _file(folder: Path, text: str) -> str:
    path = folder / "secret"
    path.write_text(text)
    return str(path)


def test_a_setting_may_be_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRIDQ_BROKER_URL_FILE", _file(tmp_path, "redis://:s3cret@redis:6379/0\n"))
    assert settings().broker_url.get_secret_value() == "redis://:s3cret@redis:6379/0"


def test_a_variable_overrides_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRIDQ_BROKER_URL_FILE", _file(tmp_path, "redis://other:6379/0"))
    monkeypatch.setenv("GRIDQ_BROKER_URL", "redis://this:6379/0")
    assert settings().broker_url.get_secret_value() == "redis://this:6379/0"


def test_the_password_is_inserted_into_the_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRIDQ_BROKER_URL", "redis://redis:6379/2")
    monkeypatch.setenv("GRIDQ_BROKER_PASSWORD_FILE", _file(tmp_path, "a/b@c:\n"))
    assert settings().broker_url.get_secret_value() == "redis://:a%2Fb%40c%3A@redis:6379/2"
    assert "a/b@c" not in repr(settings())


@pytest.mark.parametrize(
    ("url", "made"),
    [
        ("redis://h:1/0", "redis://:p@h:1/0"),
        ("rediss://user@h:1/0?ssl_cert_reqs=none", "rediss://user:p@h:1/0?ssl_cert_reqs=none"),
        ("redis://:own@h:1/0", "redis://:own@h:1/0"),
        ("unix:///run/redis.sock?db=1", "unix://:p@/run/redis.sock?db=1"),
        ("nonsense", "nonsense"),
    ],
)
def test_a_url_keeps_its_own_password(url: str, made: str) -> None:
    assert add_password(url, "p") == made
    assert Settings(broker_url=url, broker_password="p").broker_url.get_secret_value() == made


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRIDQ_BROKER_PASSWORD_FILE", str(tmp_path / "missing"))
    with pytest.raises(ConfigError) as caught:
        settings()
    assert caught.value.path == str(tmp_path / "missing")
    assert "GRIDQ_BROKER_PASSWORD_FILE" in str(caught.value)


def test_an_unknown_time_zone_error_suggests_tzdata(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRIDQ_TIMEZONE", "Mars/Gale")
    settings.cache_clear()
    with pytest.raises(ConfigError) as caught:
        settings()
    assert caught.value.path == "GRIDQ_TIMEZONE"
    reason = str(caught.value.reason)
    assert reason.startswith("this machine has no time zone 'Mars/Gale'"), "without pydantic's prefix"
    assert "pip install tzdata" in reason


def test_the_log_level_ignores_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRIDQ_LOG_LEVEL", "debug")
    assert settings().log_level == "DEBUG"
    settings.cache_clear()
    monkeypatch.setenv("GRIDQ_LOG_LEVEL", "loud")
    with pytest.raises(ConfigError) as caught:
        settings()
    assert caught.value.path == "GRIDQ_LOG_LEVEL"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GRIDQ_HOME", str(tmp_path))
    monkeypatch.delenv("GRIDQ_PREFIX", raising=False)
    return tmp_path


def _record(home: Path, **values: object) -> None:
    (home / "grid.json").write_text(json.dumps(values))
    (home / "grid.lock").touch()


def test_config_toml_has_the_machines_settings(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "config.toml").write_text('drain = 5\nprofiles = ["bench"]\n')
    assert (settings().drain, settings().profiles) == (5, ("bench",))
    settings.cache_clear()
    monkeypatch.setenv("GRIDQ_DRAIN", "7")
    assert settings().drain == 7


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("drian = 5", "config.toml:drian"),
        ("drain = -1", "config.toml:drain"),
        ('home = "/elsewhere"', "config.toml:home"),
        ("drain", "config.toml"),
        ("drain = " + "[" * 20_000, "config.toml"),
        ('broker_url = "redis://h:1/0"', "config.toml"),  # others may read it
    ],
)
def test_an_error_in_config_toml_names_its_place(home: Path, text: str, at: str) -> None:
    (home / "config.toml").write_text(text)
    (home / "config.toml").chmod(0o644)
    with pytest.raises(ConfigError) as caught:
        settings()
    assert caught.value.path == str(home / at)


def test_the_settings_of_a_local_grid_are_found(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _record(home, broker_url="redis://:p@127.0.0.1:7/0", prefix="x:", profiles=["bench"], pid=1)
    with (home / "grid.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        found = settings()
        assert found.broker_url.get_secret_value() == "redis://:p@127.0.0.1:7/0"
        assert (found.prefix, found.profiles) == ("x:", ("bench",))
        settings.cache_clear()
        monkeypatch.setenv("GRIDQ_BROKER_URL", "redis://h:1/0")
        assert settings().broker_url.get_secret_value() == "redis://h:1/0"


def test_the_record_of_a_killed_grid_is_ignored(home: Path) -> None:
    _record(home, broker_url="redis://:p@127.0.0.1:7/0", prefix="x:", pid=1)
    assert settings().prefix == "gq:"


@pytest.mark.parametrize(
    ("given", "at_fault"),
    [
        ({"RENEW_MS": "2000"}, "GRIDQ_RENEW_MS"),
        ({"LEASE_MS": "1000"}, "GRIDQ_RENEW_MS"),
        ({"SWEEP_MS": "1001"}, "GRIDQ_SWEEP_MS"),
        ({"LEASE_MS": "1000", "RENEW_MS": "500"}, "GRIDQ_SWEEP_MS"),
    ],
)
def test_intervals_longer_than_half_a_lease_are_refused(
    given: dict[str, str], at_fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in given.items():
        monkeypatch.setenv(f"GRIDQ_{name}", value)
    with pytest.raises(ConfigError) as caught:
        settings()
    assert caught.value.path == at_fault
    assert "half of GRIDQ_LEASE_MS" in str(caught.value.reason)


def test_intervals_shorter_than_half_a_lease_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"LEASE_MS": "1000", "RENEW_MS": "300", "SWEEP_MS": "350"}.items():
        monkeypatch.setenv(f"GRIDQ_{name}", value)
    assert settings().sweep_ms == 350
