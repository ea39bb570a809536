"""What machines advertise of the models that they share with the grid: one text for each machine.

The gpu profile writes and reads the text (`workers.profiles.gpu.model_files.mirrors`). It is read when a
model is pulled, and by nobody else. A machine that shares models has live seats, so these name the machines.
"""

from __future__ import annotations

from redis import Redis

from gridq.seats.registry import TTL_HEARTBEATS
from gridq.store.capacity import write_record
from gridq.store.keys import Keys


def advertise_mirror(client: Redis, keys: Keys, machine: str, text: str, heartbeat: float) -> None:
    """Publish what a machine shares, valid for three heartbeats."""
    ttl_ms = int(TTL_HEARTBEATS * heartbeat * 1000)
    write_record(client, "SET", keys("models", machine), text, "PX", ttl_ms)


def withdraw_mirror(client: Redis, keys: Keys, machine: str) -> None:
    """Delete what a machine advertised."""
    client.unlink(keys("models", machine))


def read_mirrors(client: Redis, keys: Keys) -> dict[str, str]:
    """Return what the machines with live seats advertise, by machine."""
    seats: list[bytes] = client.zrange(keys("seats"), 0, -1)  # type: ignore[assignment]
    machines = sorted({seat.decode().partition(".")[0] for seat in seats})
    texts: list[bytes | None] = []
    if machines:
        texts = client.mget([keys("models", machine) for machine in machines])  # type: ignore[assignment]
    return {machine: text.decode() for machine, text in zip(machines, texts, strict=True) if text}
