"""Wait until the server can be used. After a start it loads its data, which may take minutes, and refuses all
but a few commands meanwhile. It also refuses them while a script is slow, or its disk is full.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from redis import Redis
from redis import exceptions as faults

from gridq.errors import BrokerUnreachable
from gridq.store.connection import check_server, translate_errors
from gridq.store.redis_retries import ServerNotReady

log = logging.getLogger(__name__)

AWAY_SECONDS = 60.0
"""The time for which a server that has answered before may be away: it is being restarted."""

POLL_SECONDS = 0.25
"""The time between two checks."""

_PROBE = "#!lua flags=allow-oom\nreturn 1"
"""A script that may write, but does not: a server that takes no writes for now refuses it."""


def wait_for_server(
    client: Redis,
    report: Callable[[str], object] = log.warning,
    *,
    away: float = 0.0,
    cancelled: Callable[[], bool] = lambda: False,
) -> None:
    """Do what `check_server` does, for a long-running program: while the server loads its data, or cannot
    carry out commands for now, wait as long as it takes.

    It returns early if `cancelled()`. `report` gets one line about what it waits for. Raises
    BrokerUnreachable if the server has been away for `away` seconds, or for AWAY_SECONDS once it has
    answered, beyond the client's own retries. Other faults are raised at once, as by `check_server`.
    """
    until = time.monotonic() + away
    reported: set[bool] = set()
    while not cancelled():
        try:
            check_server(client)
            with translate_errors():
                progress = describe_loading(client)
                if progress is None:
                    client.eval(_PROBE, 0)
            if progress is None:
                return
            answers = True
            why = f"the server is loading its data{progress}: waiting until it is done"
        except BrokerUnreachable as exc:
            answers = isinstance(exc.__cause__, ServerNotReady)
            if not answers and time.monotonic() >= until:
                raise
            why = f"waiting for the server: {exc}"
        if answers not in reported:
            report(why)
            reported.add(answers)
        time.sleep(POLL_SECONDS)
        if answers:
            until = time.monotonic() + AWAY_SECONDS


def describe_loading(client: Redis) -> str | None:
    """Return how far a server is that loads its data, such as `, 40 % of 812 MB, about 9 s left`; empty if it
    does not say, None if it is not loading.
    """
    try:
        about: Any = client.info("persistence")
    except faults.NoPermissionError:
        return _check_ping(client)
    if not about.get("loading"):
        return None
    total, left = about.get("loading_total_bytes", 0), about.get("loading_eta_seconds", 0)
    text = f", {about.get('loading_loaded_perc', 0):.0f} % of {total / 1e6:.0f} MB" if total else ""
    return f"{text}, about {left} s left" if left > 0 else text


def _check_ping(client: Redis) -> str | None:
    try:
        client.ping()
    except faults.BusyLoadingError:
        return ""
    except faults.NoPermissionError:
        pass  # the first permitted command will tell
    return None
