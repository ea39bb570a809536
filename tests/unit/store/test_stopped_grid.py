"""The error for an unreachable server names the local grid that is stopped."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from gridq.config.home import GRID_RECORD, SERVER_FOLDER
from gridq.config.settings import DEFAULT_BROKER_URL, settings
from gridq.errors import BrokerError, BrokerUnreachable
from gridq.store.connection import check_server, connect, translate_error
from workers.machine.run_records import RunRecord
from workers.supervisor.embedded_server import EmbeddedServer, save_access

REFUSED = redis.ConnectionError("Connection refused")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home folder in which no grid ever ran."""
    monkeypatch.setenv("GRIDQ_HOME", str(tmp_path))
    monkeypatch.delenv("GRIDQ_BROKER_URL", raising=False)
    settings.cache_clear()
    yield tmp_path
    settings.cache_clear()


@pytest.fixture
def url(home: Path) -> str:
    """The address that the server of the home's grid had: it ran there, and is stopped."""
    with EmbeddedServer(home / SERVER_FOLDER, appendonly=True) as server:
        save_access(server)
    return server.url


def describe_error(url: str | None = None) -> str:
    error = translate_error(REFUSED, url)
    assert isinstance(error, BrokerUnreachable)
    return str(error)


def test_without_a_named_server_the_error_says_that_the_local_grid_is_stopped(home: Path, url: str) -> None:
    where = "no other is named, and nothing answers at the default address redis://127.0.0.1:6379/0"
    fix = "start it by `gridq up`, or name another grid's server by GRIDQ_BROKER_URL"
    expected = f"broker.unreachable: The grid of this machine is stopped (at {home}); {where}. Fix: {fix}"
    assert describe_error() == describe_error(DEFAULT_BROKER_URL) == expected


def test_the_known_address_of_a_stopped_grid_gets_the_same_error(home: Path, url: str) -> None:
    with connect(url, retry=False) as client, pytest.raises(BrokerError) as caught:
        check_server(client)
    assert caught.value.message == "The grid of this machine is stopped"
    assert caught.value.reason == f"nothing answers at {url.partition('//')[0]}//{url.rpartition('@')[2]}"


def test_another_named_address_is_reported_as_unreachable(
    home: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert describe_error("redis://127.0.0.1:1/0").startswith(
        "broker.unreachable: Nothing answers at redis://127.0.0.1:1/0"
    )
    monkeypatch.setenv("GRIDQ_BROKER_URL", DEFAULT_BROKER_URL)
    settings.cache_clear()
    assert describe_error().startswith(f"broker.unreachable: Nothing answers at {DEFAULT_BROKER_URL}")


def test_a_running_or_starting_grid_is_not_reported_as_stopped(home: Path, url: str) -> None:
    record = RunRecord(home, GRID_RECORD)
    try:
        assert "Nothing answers" in describe_error(DEFAULT_BROKER_URL)
    finally:
        record.close()
    assert "is stopped" in describe_error(DEFAULT_BROKER_URL)


@pytest.mark.parametrize("note", [None, "", "[]", '{"port": null}', b"\xff"])
def test_without_a_local_grid_the_error_does_not_mention_one(home: Path, note: str | bytes | None) -> None:
    if note is not None:
        (home / SERVER_FOLDER).mkdir()
        (home / SERVER_FOLDER / "access.json").write_bytes(os.fsencode(note))
    assert "Nothing answers" in describe_error()
