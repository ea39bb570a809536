"""The program that shares this machine's models with the grid: `python -m workers.process.model_mirror`.

`gridq up` and `gridq worker` run it while `share_models` of the `[gpu]` table is set. It serves files
(`workers.profiles.gpu.model_files.mirror_server`), and advertises them with each heartbeat.
"""

from __future__ import annotations

import contextlib
import signal
import threading

from redis.exceptions import RedisError

from gridq.config.machine_id import get_machine_id
from gridq.config.settings import settings
from gridq.errors import ConfigError
from gridq.process import parent_watch, startup_errors
from gridq.process.periodic import PeriodicThread
from gridq.store.connection import connect
from gridq.store.keys import Keys
from gridq.telemetry import logs
from workers.machine import mirror_registry
from workers.machine.seats import read_gpu_table
from workers.profiles.gpu.capability import GpuConfig, parse_share_address
from workers.profiles.gpu.model_files.mirror_server import MirrorServer


def main() -> None:
    """Share the models until SIGTERM. Exits with 2 if they cannot be shared."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    parent_watch.end_with_parent()
    with startup_errors.exit_on_error():
        config = settings()
        logs.setup(config=config)
        table = GpuConfig.model_validate(read_gpu_table(config))
        if table.share_models is None:
            raise ConfigError(
                "This machine shares no models",
                {
                    "path": "gpu.share_models",
                    "fix": 'set share_models = "ADDRESS:PORT" in [gpu] of seats.toml',
                },
            )
        limit = table.share_mb_per_second
        server = MirrorServer(
            config.home,
            parse_share_address(table.share_models),
            gated=table.share_gated,
            bytes_per_second=None if limit is None else limit * 1_000_000,
        )
        machine, keys = get_machine_id(config.home), Keys(config.prefix)
        client = connect(config.get_broker_url(), name="gridq-mirror")

    def advertise() -> None:
        mirror_registry.advertise_mirror(client, keys, server.describe(machine), config.heartbeat)

    server.start()
    beat = PeriodicThread("mirror", config.heartbeat, advertise)
    beat.start()
    beat.hurry()
    stop.wait()
    beat.stop()
    with contextlib.suppress(RedisError):
        mirror_registry.withdraw_mirror(client, keys, machine)
    server.stop()


if __name__ == "__main__":
    main()
