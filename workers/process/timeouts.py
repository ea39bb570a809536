"""Read back the timeouts that are in effect, from open connections and the server's clock.

A query in a URL, a library's option or another program's settings may override a setting. So a worker reads
the effective values when it starts, publishes them with its heartbeat, and warns about differences.
"""

from __future__ import annotations

import logging
from typing import Any

from celery import Celery

from gridq.config.settings import Settings
from gridq.store.connection import translate_errors
from gridq.store.scripts import Scripts

log = logging.getLogger(__name__)


def read_timeouts(app: Celery, scripts: Scripts, config: Settings, seat: str) -> dict[str, float]:
    """Return the seconds of each timeout of a live seat's worker; 0: none.

    `command`: of an answer to a script. `message`, `result`: of an answer to Celery. `redelivery`: until a
    message that was not acknowledged is delivered again; 0: never, as the sweep handles its stages.
    """
    client = scripts.client
    pool = client.connection_pool
    connection: Any = pool.get_connection()
    try:
        command = connection.socket_timeout
    finally:
        pool.release(connection)
    with translate_errors(), app.connection_for_read() as broker:
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
    effective = {name: round(float(value or 0), 1) for name, value in found.items()}
    log.info("timeouts in effect: %s", ", ".join(f"{name} {value:g} s" for name, value in effective.items()))
    if not 0.5 * config.lease_ms / 1000 <= lease <= config.lease_ms / 1000 + 0.1:
        log.warning("the effective lease is %.1f s, but GRIDQ_LEASE_MS is %d", lease, config.lease_ms)
    for name in ("command", "message", "result"):
        if not effective[name]:
            log.warning("there is no effective %s timeout: a half-open connection may hang", name)
    return effective
