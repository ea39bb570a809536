"""The grid's mirrors, as a machine that pulls a model finds them, and this machine's own `[gpu]` table."""

from __future__ import annotations

import logging
from collections.abc import Callable

from redis.exceptions import RedisError

from gridq.config.settings import Settings
from gridq.errors import GridError
from gridq.protocol.models import Json
from gridq.seats.model_mirrors import read_mirrors
from gridq.store.connection import connect
from gridq.store.keys import Keys
from workers.machine.seats import read_seats_file
from workers.profiles.gpu.model_files.mirrors import Mirror, parse_mirrors

log = logging.getLogger(__name__)

TIMEOUT_SECONDS = 2.0


def find_mirrors(config: Settings) -> Callable[[], list[Mirror]]:
    """Return a function that reads the grid's mirrors. Without a grid there are none."""

    def find() -> list[Mirror]:
        try:
            url = config.get_broker_url()
            with connect(url, name="gridq-pull", timeout=TIMEOUT_SECONDS, retry=False) as client:
                return parse_mirrors(read_mirrors(client, Keys(config.prefix)))
        except (GridError, RedisError, OSError) as exc:
            log.info("no machine of the grid is asked for the model: %s", exc)
            return []

    return find


def read_gpu_table(config: Settings) -> dict[str, Json]:
    """Return the `[gpu]` table of the seats file, empty if there is none. Raises ConfigError."""
    table = read_seats_file(config.home, {"gpu", "llm", *config.profiles}).get("gpu", {})
    return table if isinstance(table, dict) else {}
