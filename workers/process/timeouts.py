"""The timeouts that are in effect, read back from where they work: open connections, the server's clock.

A timeout that was set may be overruled on its way, by a query in a URL, an option of a library, a program
with other settings. So a worker reads back what holds at its start, tells it with its heartbeat, and warns
where that is not what was set.
"""

from __future__ import annotations

import logging
from typing import Any

from celery import Celery

from gridq.config.settings import Settings
from gridq.store.connection import translated
from gridq.store.scripts import Scripts

log = logging.getLogger(__name__)


def read_timeouts(app: Celery, scripts: Scripts, config: Settings, seat: str) -> dict[str, float]:
    """The seconds of each timeout of a live seat's worker; 0: none.

    `command`: for an answer to a script; `message` and `result`: for an answer to Celery; `redelivery`: until
    a message that was not acknowledged comes again (0: never, the sweep looks after what it stood for).
    """
    client = scripts.client
    pool = client.connection_pool
    connection: Any = pool.get_connection()
    try:
        command = connection.socket_timeout
    finally:
        pool.release(connection)
    with translated(), app.connection_for_read() as broker:
        channel = broker.default_channel
        message = channel.client.connection_pool.connection_kwargs.get("socket_timeout")
        redelivery = channel.visibility_timeout if channel.ack_emulation else 0
    seconds, micros = client.time()
    until: Any = client.zscore(scripts.keys("seats"), seat) or 0
    lease = max(until / 1000 - seconds - micros / 1e6, 0)
    found = {
        "command": command,
        "message": message,
        "result": app.backend.connparams.get("socket_timeout"),
        "redelivery": redelivery,
        "lease": lease,
        "renew": config.renew_ms / 1000,
        "stage": config.stage_timeout,
        "drain": config.drain,
        "job": config.deadline,
    }
    told = {name: round(float(value or 0), 1) for name, value in found.items()}
    log.info("timeouts in effect: %s", ", ".join(f"{name} {value:g} s" for name, value in told.items()))
    if not 0.5 * config.lease_ms / 1000 <= lease <= config.lease_ms / 1000 + 0.1:
        log.warning("the lease in effect is %.1f s, GRIDQ_LEASE_MS says %d", lease, config.lease_ms)
    for name in ("command", "message", "result"):
        if not told[name]:
            log.warning("no timeout is in effect for %s: a connection that is half open may hang", name)
    return told
