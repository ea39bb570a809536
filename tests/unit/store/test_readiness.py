"""A program that runs long waits for its server while that reads its data, and says so."""

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


def waited_out(slow: SlowServer, url: str) -> list[str]:
    """What is told of a server that reads its data while it is waited for, and then answers."""
    slow.load_slowly()
    told = []

    def tell(line: str) -> None:
        told.append(line)
        slow.hurry()

    with connect(url, retry=False) as client:
        wait_for_server(client, tell)
        assert client.ping(), "it answers"
    return told


def test_waiting_reports_once_that_the_server_is_loading(slow: SlowServer) -> None:
    told = waited_out(slow, slow.url)
    assert len(told) == 1
    how_far = (
        r"the server is loading its data, \d+ % of \d+ MB(, about \d+ s left)?: waiting until it is done"
    )
    assert re.fullmatch(how_far, told[0])


def test_waiting_can_be_cancelled(slow: SlowServer) -> None:
    slow.load_slowly()
    told: list[str] = []
    with connect(slow.url, retry=False) as client:
        wait_for_server(client, told.append, cancelled=lambda: bool(told))
        with pytest.raises(BusyLoadingError):
            client.dbsize()
    slow.hurry()


def test_waiting_works_without_permission_for_info(slow: SlowServer) -> None:
    told = waited_out(slow, slow.narrow_url)
    assert told == ["the server is loading its data: waiting until it is done"]


def test_a_server_that_dies_while_loading_is_waited_for_within_a_limit(
    slow: SlowServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "AWAY_SECONDS", 0.5)
    slow.load_slowly()
    told = []

    def tell(line: str) -> None:
        told.append(line)
        slow.kill()

    with connect(slow.url, retry=False) as client, pytest.raises(BrokerUnreachable, match="Nothing answers"):
        wait_for_server(client, tell)
    assert [line.partition(",")[0].partition(":")[0] for line in told] == [
        "the server is loading its data",
        "waiting for the server",
    ]


def test_an_absent_server_is_waited_for_on_request(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path, port=find_free_port())
    told = []

    def tell(line: str) -> None:
        told.append(line)
        server.start()

    with server, connect(server.url, retry=False) as client:
        server.kill()
        wait_for_server(client, tell, away=60)
    assert len(told) == 1
    assert told[0].startswith("waiting for the server: broker.unreachable: Nothing answers at")


def test_a_wrong_address_or_password_fails_at_once(slow: SlowServer) -> None:
    told: list[str] = []
    with (
        connect(f"redis://127.0.0.1:{find_free_port()}/0", retry=False) as nobody,
        pytest.raises(BrokerUnreachable),
    ):
        wait_for_server(nobody, told.append)
    slow.start()
    wrong = slow.url.replace(slow.password, "wrong")
    with connect(wrong, retry=False) as client, pytest.raises(BrokerRefused, match="refused the login"):
        wait_for_server(client, told.append, away=60)
    assert told == []
