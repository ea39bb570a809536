"""Whether the server can be worked with yet: at its start it reads its data, for minutes where they are many,
and refuses all but a few commands meanwhile.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from redis import Redis
from redis import exceptions as faults

from gridq.errors import BrokerUnreachable
from gridq.store.connection import check_server, translated

log = logging.getLogger(__name__)

AWAY = 60.0
"""Seconds for which a server may be away that has answered before: somebody starts it again."""

LOOK = 0.25
"""Seconds between two looks at it."""


def await_server(
    client: Redis,
    tell: Callable[[str], object] = log.warning,
    *,
    away: float = 0.0,
    cancelled: Callable[[], bool] = lambda: False,
) -> None:
    """`check_server` for a program that runs long: while the server reads its data it waits, however long
    that takes; with `cancelled()` it returns before. `tell` gets one line for what is waited for.

    BrokerUnreachable: it has been away for `away` seconds, or for AWAY where it did answer, beyond the
    client's own patience. Its other faults are told at once, as `check_server` does.
    """
    until = time.monotonic() + away
    told: set[bool] = set()
    while not cancelled():
        try:
            check_server(client)
            with translated():
                how_far = reading(client)
            if how_far is None:
                return
            answers = True
            why = f"the server reads its data{how_far}: this goes on when it has"
        except BrokerUnreachable as exc:
            if time.monotonic() >= until:
                raise
            answers = False
            why = f"the server is waited for: {exc}"
        if answers not in told:
            tell(why)
            told.add(answers)
        time.sleep(LOOK)
        if answers:
            until = time.monotonic() + AWAY


def reading(client: Redis) -> str | None:
    """How far a server is that reads its data, such as `, 40 % of 812 MB, for some 9 s more`, empty where it
    does not say; None where it reads none.
    """
    try:
        about: Any = client.info("persistence")
    except faults.NoPermissionError:
        return _refuses(client)
    if not about.get("loading"):
        return None
    total, left = about.get("loading_total_bytes", 0), about.get("loading_eta_seconds", 0)
    text = f", {about.get('loading_loaded_perc', 0):.0f} % of {total / 1e6:.0f} MB" if total else ""
    return f"{text}, for some {left} s more" if left > 0 else text


def _refuses(client: Redis) -> str | None:
    try:
        client.ping()
    except faults.BusyLoadingError:
        return ""
    except faults.NoPermissionError:
        pass  # the first command that is permitted meets it
    return None
