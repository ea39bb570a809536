"""The mirrors of the grid in its Redis: each advertises itself there, and a pull finds them there.

A machine that shares models has live seats, so these name the machines to look for.
"""

from __future__ import annotations

import logging

from redis import Redis
from redis.exceptions import RedisError

from gridq.config.settings import Settings
from gridq.errors import GridError
from gridq.seats.registry import TTL_HEARTBEATS
from gridq.store.capacity import write_record
from gridq.store.connection import connect
from gridq.store.keys import Keys
from workers.profiles.gpu.model_files.mirror_protocol import Mirror, parse_mirrors

log = logging.getLogger(__name__)

TIMEOUT_SECONDS = 2.0


def advertise_mirror(client: Redis, keys: Keys, mirror: Mirror, heartbeat: float) -> None:
    """Publish what a machine shares, valid for three heartbeats."""
    ttl_ms = int(TTL_HEARTBEATS * heartbeat * 1000)
    write_record(client, "SET", keys("models", mirror.machine), mirror.model_dump_json(), "PX", ttl_ms)


def withdraw_mirror(client: Redis, keys: Keys, machine: str) -> None:
    """Delete what a machine advertised."""
    client.unlink(keys("models", machine))


def read_mirrors(client: Redis, keys: Keys) -> list[Mirror]:
    """Return the mirrors of the machines with live seats."""
    seats: list[bytes] = client.zrange(keys("seats"), 0, -1)  # type: ignore[assignment]
    machines = sorted({seat.decode().partition(".")[0] for seat in seats})
    texts: list[bytes | None] = []
    if machines:
        texts = client.mget([keys("models", machine) for machine in machines])  # type: ignore[assignment]
    return parse_mirrors({name: text for name, text in zip(machines, texts, strict=True) if text})


def find_mirrors(config: Settings) -> list[Mirror]:
    """Connect to the grid and return its mirrors. A grid that cannot be reached has none."""
    try:
        url = config.get_broker_url()
        with connect(url, name="gridq-pull", timeout=TIMEOUT_SECONDS, retry=False) as client:
            return read_mirrors(client, Keys(config.prefix))
    except (GridError, RedisError, OSError) as exc:
        log.info("no machine of the grid is asked for the model: %s", exc)
        return []
