"""Point this process to a grid: environment, settings, Celery app, inbox, and a client."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest

from gridq import app as app_module
from gridq.client import Client, get_default_client
from gridq.config.settings import Settings, settings
from gridq.submission import inbox


def environment(config: Settings) -> dict[str, str]:
    """Return the environment variables with which another program uses the grid of `config`."""
    return {
        "GRIDQ_BROKER_URL": config.broker_url.get_secret_value(),
        "GRIDQ_PREFIX": config.prefix,
        "GRIDQ_HOME": str(config.home),
        "GRIDQ_PROFILES": ",".join(config.profiles),
    }


@contextmanager
def use_grid(config: Settings, more: Mapping[str, str] | None = None) -> Iterator[Client]:
    """Use the grid of `config` in this process within the block; yield a client of it.

    `more` is added to the environment. At the end, the previous state is restored and the grid's keys are
    deleted.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("GRIDQ_KEY", raising=False)
        for name, value in {**environment(config), **(more or {})}.items():
            patch.setenv(name, value)
        settings.cache_clear()
        inbox.get_default_inbox.cache_clear()
        app_module.configure(config)
        get_default_client.cache_clear()
        with Client(config=config) as client:
            yield client
            if get_default_client.cache_info().currsize:
                get_default_client().close()
            get_default_client.cache_clear()
            gc.collect()  # unreferenced results unsubscribe while the server still runs
            for key in client.redis.scan_iter(f"{config.prefix}*", count=1000):
                client.redis.unlink(key)
    settings.cache_clear()
    inbox.get_default_inbox.cache_clear()
