"""A gateway in this process: a server on a thread of its own, real sockets."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from pydantic import SecretStr

from gridq.config.settings import Settings
from gridq.gateway.app import make_server
from gridq.gateway.options import GatewayOptions
from gridq.store.connection import connect
from tests.fakes.bench_profile import BENCH
from tests.local_grid import DEFAULT_SEATS, LocalGrid
from workers.supervisor.embedded_server import EmbeddedServer


@dataclass(frozen=True)
class Gateway:
    """One gateway, and a client of it that sends no key."""

    url: str
    http: httpx.Client
    server: Any

    def get(self, path: str, status: int = 200, **kwargs: Any) -> Any:
        """The JSON that a GET gives; it must have this status."""
        return self.ask("GET", path, status, **kwargs)

    def post(self, path: str, json: Any = None, status: int = 200, **kwargs: Any) -> Any:
        """The same of a POST."""
        return self.ask("POST", path, status, json=json, **kwargs)

    def ask(self, method: str, path: str, status: int, **kwargs: Any) -> Any:
        """The JSON of an answer, which must have this status."""
        reply = self.http.request(method, path, **kwargs)
        assert reply.status_code == status, reply.text
        return reply.json() if reply.content else None

    def events(self, path: str, **kwargs: Any) -> Iterator[dict[str, str]]:
        """The events of a stream, each `{"event", "id", "data"}` as far as it has them; comments too, as
        `{"comment"}`.
        """
        with self.http.stream("GET", path, **kwargs) as reply:
            assert reply.status_code == 200, reply.read()
            assert reply.headers["content-type"].startswith("text/event-stream")
            event: dict[str, str] = {}
            for line in reply.iter_lines():
                name, _, value = line.partition(":")
                if not line:
                    if event:
                        yield event
                    event = {}
                elif not name:
                    yield {"comment": value.removeprefix(" ")}
                else:
                    event[name] = value.removeprefix(" ")


@contextmanager
def serving(config: Settings, **options: Any) -> Iterator[Gateway]:
    """A gateway that serves within it, on a free port."""
    told: list[str] = []
    ready = threading.Event()

    def listening(url: str) -> None:
        told.append(url)
        ready.set()

    server = make_server(config, GatewayOptions(port=0, **options), listening)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        assert ready.wait(30), "the gateway did not start"
        with httpx.Client(base_url=told[0], timeout=70) as http:
            yield Gateway(told[0], http, server)
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


@dataclass(frozen=True)
class Benches:
    """A grid of bench seats in this process, with a gateway before it."""

    grid: LocalGrid
    gateway: Gateway
    config: Settings


@contextmanager
def benches(server: EmbeddedServer, home: Path, *, concurrency: int = 4, **options: Any) -> Iterator[Benches]:
    """Such a grid under a prefix of its own, whose keys are deleted afterwards. `options`: the gateway's."""
    config = Settings(
        broker_url=SecretStr(server.url),
        prefix=f"w{secrets.token_hex(4)}:",
        home=home,
        profiles=(BENCH,),
        inline_value=1000,
    )
    with connect(server.url, name="tests") as client:
        with (
            LocalGrid(client, config, DEFAULT_SEATS, concurrency=concurrency) as grid,
            serving(config, **options) as gateway,
        ):
            yield Benches(grid, gateway, config)
        for key in client.scan_iter(f"{config.prefix}*", count=1000):
            client.unlink(key)
