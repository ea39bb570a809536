"""Submissions during an outage of the server fail soon, by each way to submit, and work again afterwards."""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import redis

import gridq
from gridq.client import AsyncClient, Client
from gridq.config.settings import Settings
from gridq.errors import BrokerUnreachable
from gridq.store.connection import MAX_SUBMIT_CONNECTIONS, connect
from gridq.tasks import run_graph
from tests.acceptance.homes import GRIDQ
from tests.chaos.proxy import Proxy
from tests.fakes.bench_profile import BENCH
from tests.grid_environment import use_grid
from tests.local_grid import DEFAULT_SEATS, LocalGrid
from workers.supervisor.embedded_server import EmbeddedServer

pytestmark = pytest.mark.slow

ECHO = {"root": {"op": "Stage", "id": "bench_echo"}}
THREADS = 1000


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[Proxy]:
    with EmbeddedServer(tmp_path / "data") as server, Proxy(("127.0.0.1", server.port)) as made:
        made.direct = server.url  # type: ignore[attr-defined]
        yield made


@pytest.fixture
def client(proxy: Proxy, tmp_path: Path) -> Iterator[Client]:
    """A client that reaches the server by the proxy, while the grid does so directly."""
    direct = Settings(broker_url=proxy.direct, prefix="away:", profiles=(BENCH,), home=tmp_path)  # type: ignore[attr-defined]
    port = direct.broker_url.get_secret_value().rpartition(":")[2].partition("/")[0]
    url = direct.broker_url.get_secret_value().replace(f":{port}/", f":{proxy.port}/")
    config = direct.model_copy(update={"broker_url": type(direct.broker_url)(url)})
    with (
        use_grid(config) as made,
        connect(direct.broker_url.get_secret_value()) as store,
        LocalGrid(store, direct, DEFAULT_SEATS),
    ):
        gridq.client.get_default_client.cache_clear()
        yield made
        gridq.client.get_default_client.cache_clear()


def refused(proxy: Proxy) -> Callable[[], None]:
    there = proxy.address
    proxy.address = ("127.0.0.1", 1)
    proxy.cut(reset=True)

    def back() -> None:
        proxy.address = there

    return back


def swallowed(proxy: Proxy) -> Callable[[], None]:
    proxy.blackhole(True)
    return lambda: proxy.blackhole(False)


def by_shell(client: Client, folder: Path) -> str:
    graph = folder / "graph.json"
    graph.write_text(json.dumps(ECHO))
    done = subprocess.run(
        [*GRIDQ, "run", str(graph), "--input", "1"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == (0 if done.stdout else 2), done.stderr
    assert done.stderr.count("\n") == (0 if done.stdout else 1)
    return done.stderr or done.stdout


@pytest.mark.parametrize("fault", [refused, swallowed])
def test_every_way_to_submit_raises_the_same_error(
    client: Client, proxy: Proxy, tmp_path: Path, fault: Callable[[Proxy], Callable[[], None]]
) -> None:
    other = AsyncClient(config=client.config)
    ways: dict[str, Callable[[], object]] = {
        "client": lambda: client.submit(ECHO, 1),
        "module": lambda: gridq.submit(ECHO, 1),
        "celery": lambda: run_graph.delay(ECHO, 1),
        "async": lambda: asyncio.run(other.submit(ECHO, 1)),
    }
    for submit in ways.values():
        submit()
    assert by_shell(client, tmp_path).strip() == "1"

    def fresh() -> str:
        with Client(config=client.config) as made:
            return made.submit(ECHO, 1)

    away = {**ways, "fresh": fresh, "shell": lambda: by_shell(client, tmp_path)}
    back = fault(proxy)
    with ThreadPoolExecutor(len(away)) as pool:  # side by side: each takes as long as its time-outs
        calls = {name: pool.submit(submit) for name, submit in away.items()}
    assert calls.pop("shell").result().startswith("error: broker.unreachable")  # type: ignore[attr-defined]
    for name, each in calls.items():
        caught = each.exception()
        assert isinstance(caught, BrokerUnreachable), (name, caught)
        assert caught.fix, name
    back()
    for submit in ways.values():
        submit()
    assert client.run(ECHO, "again", timeout=30) == "again"
    asyncio.run(other.close())
    gridq.client.get_default_client().close()


@pytest.mark.parametrize("fault", [refused, swallowed])
def test_a_thousand_callers_take_few_connections_and_no_memory(
    client: Client, proxy: Proxy, fault: Callable[[Proxy], Callable[[], None]]
) -> None:
    client.submit(ECHO, 1)
    text = "x" * 100_000
    went: list[str] = []
    most = 0

    def submit_large() -> None:
        try:
            client.submit(ECHO, text)
            went.append("submitted")
        except BrokerUnreachable:
            went.append("unreachable")

    def in_use() -> int:
        return len(getattr(client.scripts.client.connection_pool, "_connections", ()))

    back = fault(proxy)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    threads = [threading.Thread(target=submit_large, daemon=True) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        most = max(most, in_use())
        time.sleep(0.05)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert went == ["unreachable"] * THREADS
    assert 0 < most <= MAX_SUBMIT_CONNECTIONS
    assert grown < 250_000, f"{grown} KB for {THREADS} callers with 100 KB each"
    back()
    assert client.run(ECHO, "again", timeout=30) == "again"


def test_threads_of_a_cold_client_wait_at_once_not_one_after_another(client: Client, proxy: Proxy) -> None:
    with Client(config=client.config) as cold:
        back = swallowed(proxy)
        started = time.monotonic()
        with ThreadPoolExecutor(10) as pool:
            calls = [pool.submit(cold.submit, ECHO, 1) for _ in range(10)]
            assert all(isinstance(each.exception(), BrokerUnreachable) for each in calls)
        assert time.monotonic() - started < 12, "ten seconds are documented"
        back()
        cold.submit(ECHO, 1)


def test_a_client_without_a_server_raises(tmp_path: Path) -> None:
    config = Settings(broker_url="redis://127.0.0.1:1/0", prefix="none:", home=tmp_path, profiles=(BENCH,))
    with Client(config=config) as client, pytest.raises(BrokerUnreachable) as caught:
        client.submit(ECHO, 1)
    assert isinstance(caught.value.__cause__, redis.ConnectionError)
