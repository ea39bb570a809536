"""Provide one real server for the run, and a separate prefix for every test."""

from __future__ import annotations

import gc
import logging
import os
import secrets
from collections import Counter
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis

from gridq.app import configure, disconnect
from gridq.config.settings import Settings, settings
from gridq.process.heap import keep_heap_small
from gridq.store.connection import connect
from gridq.views.audit import find_keys_without_ttl
from workers.profiles.gpu.memory.device_book import BOOKS_VARIABLE
from workers.profiles.llm.seats_from_environment import VARIABLE_PREFIXES, list_key_variables
from workers.supervisor.embedded_server import EmbeddedServer

CHECKOUT = Path(__file__).resolve().parents[1]

QUICK = frozenset({"unit", "contracts"})
"""Folders of tests of which few start a program."""


@dataclass(frozen=True)
class GridEnv:
    """A test's own prefix on the server, and the settings for it."""

    client: redis.Redis
    prefix: str
    settings: Settings
    url: str

    def environ(self) -> dict[str, str]:
        """Return the environment variables with which a child process uses the same prefix."""
        return {
            "GRIDQ_BROKER_URL": self.url,
            "GRIDQ_PREFIX": self.prefix,
            "GRIDQ_HOME": str(self.settings.home),
        }


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Return twice the number of cores: a process that runs tests computes for less than half of its time."""
    return 2 * (os.cpu_count() or 1)


def pytest_configure() -> None:
    """Keep the heap small, as programs do: else what large requests and many threads once took stays."""
    keep_heap_small()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Import tests without garbage collections (a third of that time), and leave them out of later ones."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let the processes of `make test` run files that start programs and files that compute side by side.

    Those that start programs would otherwise all run at the same time, and the longest of them at the end,
    alone.
    """
    if not hasattr(config, "workerinput"):
        return
    files = Counter(item.path for item in items)
    quick = [path for path in files if path.relative_to(CHECKOUT / "tests").parts[0] in QUICK]
    quick.sort(key=files.__getitem__, reverse=True)
    slow = [path for path in files if path not in quick]
    place = {path: at / len(quick) for at, path in enumerate(quick)}
    place |= {path: 0.9 * at / len(slow) for at, path in enumerate(slow)}  # the last files are short
    items.sort(key=lambda item: place[item.path])


@pytest.fixture(scope="session", autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Isolate tests from the developer's home folder, running grid, and API keys in the environment.

    Programs that a test starts can import `tests.fakes`.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRIDQ_HOME", str(tmp_path_factory.mktemp("home")))
        patch.delenv("GRIDQ_URL", raising=False)
        patch.setenv("PYTHONPATH", str(CHECKOUT), prepend=os.pathsep)
        patch.setenv(BOOKS_VARIABLE, str(tmp_path_factory.mktemp("books")))
        patch.setenv("GRIDQ_SKIP_ENGINES", "1")  # those of the developer's machine
        for provider in VARIABLE_PREFIXES:
            for variable in list_key_variables(provider):
                patch.delenv(variable, raising=False)
        yield


@pytest.fixture(autouse=True)
def level_of_the_log() -> Iterator[None]:
    """Restore the root logger's level, which a Celery worker in the test's process changes.

    Otherwise later tests would not see warnings.
    """
    before = logging.root.level
    yield
    logging.root.setLevel(before)


@pytest.fixture(scope="session")
def server() -> Iterator[EmbeddedServer]:
    """The server of the session. A test that stops or kills its server starts its own."""
    with EmbeddedServer() as started:
        yield started
        disconnect()  # while the server still runs


@pytest.fixture
def store(server: EmbeddedServer) -> Iterator[redis.Redis]:
    """A client of the session's server."""
    client = connect(server.url, name="tests")
    yield client
    client.close()


@pytest.fixture
def grid_env(
    server: EmbeddedServer, store: redis.Redis, tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> Iterator[GridEnv]:
    """A fresh prefix in `settings()`, the environment and the app; its keys are deleted after the test."""
    prefix = f"t{secrets.token_hex(4)}:"
    env = {"GRIDQ_BROKER_URL": server.url, "GRIDQ_PREFIX": prefix, "GRIDQ_HOME": str(tmp_path)}
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    settings.cache_clear()
    configure(settings())
    yield GridEnv(store, prefix, settings(), server.url)
    settings.cache_clear()
    configure(settings())
    for key in store.scan_iter(f"{prefix}*", count=1000):
        store.unlink(key)


@pytest.fixture
def key_hygiene(grid_env: GridEnv) -> Iterator[None]:
    """Fail a test that leaves a key without a TTL which is not listed as permanent.

    Use it for a whole module by `pytestmark = pytest.mark.usefixtures("key_hygiene")`.
    """
    yield
    left = find_keys_without_ttl(grid_env.client, grid_env.prefix)
    assert not left, f"keys without a TTL: {left}"
