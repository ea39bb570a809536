"""This process pointed at a grid: environment, settings, Celery's app, inbox, and a client of its own."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

from gridq import app as app_module
from gridq.client import Client
from gridq.config.settings import Settings, settings
from gridq.submission import inbox


def environment(config: Settings) -> dict[str, str]:
    """The variables by which another program finds the grid of `config`."""
    return {
        "GRIDQ_BROKER_URL": config.broker_url.get_secret_value(),
        "GRIDQ_PREFIX": config.prefix,
        "GRIDQ_HOME": str(config.home),
        "GRIDQ_PROFILES": ",".join(config.profiles),
    }


@contextmanager
def use_grid(config: Settings, more: Mapping[str, str] | None = None) -> Iterator[Client]:
    """Within it this process belongs to the grid of `config`, with `more` in its environment; a client of it.
    Then all is as before, and no key of the grid is left.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("GRIDQ_KEY", raising=False)
        for name, value in {**environment(config), **(more or {})}.items():
            patch.setenv(name, value)
        settings.cache_clear()
        inbox.get_default_inbox.cache_clear()
        app_module.configure(config)
        with Client(config=config) as client:
            yield client
            gc.collect()  # results that nobody holds say goodbye to the server while it is there
            for key in client.redis.scan_iter(f"{config.prefix}*", count=1000):
                client.redis.unlink(key)
    settings.cache_clear()
    inbox.get_default_inbox.cache_clear()
