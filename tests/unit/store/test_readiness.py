"""Long-running programs wait for a server that is loading its data, and report it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis.exceptions import BusyLoadingError

from gridq.errors import BrokerRefused, BrokerUnreachable
from gridq.store import readiness
from gridq.store.connection import connect
from gridq.store.readiness import wait_for_server
from tests.fakes.slow_server import SlowServer
from workers.supervisor.embedded_server import EmbeddedServer, find_free_port


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlowServer]:
    with SlowServer(tmp_path_factory.mktemp("slow")) as server:
        yield server.fill()


def wait_and_report(slow: SlowServer, url: str) -> list[str]:
    """Return what is reported while a loading server is waited for, until it answers."""
    slow.load_slowly()
    lines = []

    def report(line: str) -> None:
        lines.append(line)
        slow.hurry()

    with connect(url, retry=False) as client:
        wait_for_server(client, report)
        assert client.ping(), "it answers"
    return lines


def test_waiting_reports_once_that_the_server_is_loading(slow: SlowServer) -> None:
    lines = wait_and_report(slow, slow.url)
    assert len(lines) == 1
    how_far = (
        r"the server is loading its data, \d+ % of \d+ MB(, about \d+ s left)?: waiting until it is done"
    )
    assert re.fullmatch(how_far, lines[0])


def test_waiting_can_be_cancelled(slow: SlowServer) -> None:
    slow.load_slowly()
    lines: list[str] = []
    with connect(slow.url, retry=False) as client:
        wait_for_server(client, lines.append, cancelled=lambda: bool(lines))
        with pytest.raises(BusyLoadingError):
            client.dbsize()
    slow.hurry()


def test_waiting_works_without_permission_for_info(slow: SlowServer) -> None:
    lines = wait_and_report(slow, slow.narrow_url)
    assert lines == ["the server is loading its data: waiting until it is done"]


def test_a_server_that_dies_while_loading_is_waited_for_within_a_limit(
    slow: SlowServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "AWAY_SECONDS", 0.5)
    slow.load_slowly()
    lines = []

    def report(line: str) -> None:
        lines.append(line)
        slow.kill()

    with connect(slow.url, retry=False) as client, pytest.raises(BrokerUnreachable, match="Nothing answers"):
        wait_for_server(client, report)
    assert [line.partition(",")[0].partition(":")[0] for line in lines] == [
        "the server is loading its data",
        "waiting for the server",
    ]


def test_an_absent_server_is_waited_for_on_request(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path, port=find_free_port())
    lines = []

    def report(line: str) -> None:
        lines.append(line)
        server.start()

    with server, connect(server.url, retry=False) as client:
        server.kill()
        wait_for_server(client, report, away=60)
    assert len(lines) == 1
    assert lines[0].startswith("waiting for the server: broker.unreachable: Nothing answers at")


def test_a_wrong_address_or_password_fails_at_once(slow: SlowServer) -> None:
    lines: list[str] = []
    with (
        connect(f"redis://127.0.0.1:{find_free_port()}/0", retry=False) as absent,
        pytest.raises(BrokerUnreachable),
    ):
        wait_for_server(absent, lines.append)
    slow.start()
    wrong = slow.url.replace(slow.password, "wrong")
    with connect(wrong, retry=False) as client, pytest.raises(BrokerRefused, match="refused the login"):
        wait_for_server(client, lines.append, away=60)
    assert lines == []


def test_a_server_that_refuses_writes_is_waited_for(tmp_path: Path) -> None:
    lines = []
    with EmbeddedServer(tmp_path / "data") as server, connect(server.url, retry=False) as client:
        client.config_set("min-replicas-to-write", 1)

        def report(line: str) -> None:
            lines.append(line)
            client.config_set("min-replicas-to-write", 0)

        wait_for_server(client, report)
    assert len(lines) == 1
    assert "has too few replicas" in lines[0]
