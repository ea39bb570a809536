"""Run gateways with real sockets: on a thread of this process, or as a process."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
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
from tests.acceptance.homes import GRIDQ
from tests.fakes.bench_profile import BENCH
from tests.grid_environment import environment
from tests.local_grid import DEFAULT_SEATS, LocalGrid
from workers.supervisor.embedded_server import EmbeddedServer


@dataclass(frozen=True)
class Gateway:
    """A gateway, and a client of it that sends no key."""

    url: str
    http: httpx.Client
    server: Any

    def get(self, path: str, status: int = 200, **kwargs: Any) -> Any:
        """Send a GET and return the JSON of its answer, which must have this status."""
        return self.ask("GET", path, status, **kwargs)

    def post(self, path: str, body: Any = None, status: int = 200, **kwargs: Any) -> Any:
        """Send a POST and return the JSON of its answer, which must have this status."""
        return self.ask("POST", path, status, json=body, **kwargs)

    def ask(self, method: str, path: str, status: int, **kwargs: Any) -> Any:
        """Send a request and return the JSON of its answer, which must have this status."""
        reply = self.http.request(method, path, **kwargs)
        assert reply.status_code == status, reply.text
        return reply.json() if reply.content else None

    def events(self, path: str, **kwargs: Any) -> Iterator[dict[str, str]]:
        """Yield the events of a stream, each with those of `event`, `id` and `data` that it has.

        A comment is yielded as `{"comment": text}`.
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
    """A gateway that serves within it, on a free port. `options`: its own; `admission_wait` is a setting."""
    if "admission_wait" in options:
        config = config.model_copy(update={"admission_wait": options.pop("admission_wait")})
    urls: list[str] = []
    ready = threading.Event()

    def listening(url: str) -> None:
        urls.append(url)
        ready.set()

    server = make_server(config, GatewayOptions(port=0, **options), listening)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        assert ready.wait(30), "the gateway did not start"
        with httpx.Client(base_url=urls[0], timeout=70) as http:
            yield Gateway(urls[0], http, server)
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


class GatewayProcess:
    """`gridq gateway` as a process on a free port. `ready` waits until it listens."""

    def __init__(self, config: Settings, drain: float) -> None:
        quiet = {name: value for name, value in os.environ.items() if not name.startswith("GRIDQ_")}
        self.process = subprocess.Popen(
            [*GRIDQ, "gateway", "--port", "0", "--json"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            env={**quiet, **environment(config), "GRIDQ_DRAIN": str(drain)},
        )
        self.url = ""

    def ready(self) -> str:
        """Return its URL once it listens."""
        assert self.process.stdout is not None
        text = ""
        while not text.endswith("}\n"):
            line = self.process.stdout.readline()
            assert line, "the gateway did not start"
            text += line
        self.url = str(json.loads(text)["url"])
        return self.url

    def kill(self) -> None:
        """Kill it, as a crash would."""
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        """Stop it if it still runs."""
        self.process.terminate()
        self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()


@dataclass(frozen=True)
class Benches:
    """A grid of bench seats in this process, behind a gateway."""

    grid: LocalGrid
    gateway: Gateway
    config: Settings


@contextmanager
def benches(server: EmbeddedServer, home: Path, *, concurrency: int = 4, **options: Any) -> Iterator[Benches]:
    """Run a grid of bench seats behind a gateway; delete its keys afterwards. `options`: the gateway's."""
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
