"""Who is there: the seats' advertisements, and the stages their machines offer.

An advertisement is a key with a TTL that the seat's worker writes with each heartbeat. It describes; it never
carries a ledger, and it decides nothing: live or dead is the lease's business (`renew`).
"""

from __future__ import annotations

import difflib
import json
import logging

from pydantic import ValidationError
from redis import Redis

from gridq import queues
from gridq.protocol import Advertisement, Json
from gridq.store.keys import Keys

log = logging.getLogger(__name__)

BEATS = 3


def advertise(client: Redis, keys: Keys, ad: Advertisement, heartbeat: float) -> None:
    """Say what a seat is, for three heartbeats."""
    client.set(keys("ad", ad.seat), ad.model_dump_json(), px=int(BEATS * heartbeat * 1000))


def withdraw(client: Redis, keys: Keys, seat: str) -> None:
    """Take a seat's advertisement back."""
    client.unlink(keys("ad", seat))


def seats(client: Redis, keys: Keys) -> list[Advertisement]:
    """Every live seat that advertises itself, by name."""
    names = [keys("ad", seat) for seat in _live(client, keys)]
    texts = client.mget(names) if names else []
    return sorted(filter(None, map(_read, texts)), key=lambda ad: ad.seat)


def _read(text: bytes | str | None) -> Advertisement | None:
    """An advertisement, or None where there is none that this program can read: one seat whose worker is of
    another version must not stand in the way of all others.
    """
    try:
        return None if text is None else Advertisement.model_validate_json(text)
    except ValidationError:
        log.warning("an advertisement cannot be read: its worker is of another version")
        return None


def publish_stages(
    client: Redis, keys: Keys, machine: str, specs: list[dict[str, Json]], heartbeat: float
) -> None:
    """Offer the user's stages of a machine to whoever splits graphs, for three heartbeats."""
    if specs:
        client.set(keys("stages", machine), json.dumps(specs), px=int(BEATS * heartbeat * 1000))


def published_stages(client: Redis, keys: Keys) -> list[dict[str, Json]]:
    """The stages that live machines offer, each once."""
    machines = {seat.partition(".")[0] for seat in _live(client, keys)}
    names = [keys("stages", machine) for machine in sorted(machines)]
    found: dict[str, dict[str, Json]] = {}
    for text in client.mget(names) if names else []:
        for spec in json.loads(text) if text else []:
            found.setdefault(json.dumps(spec, sort_keys=True), spec)
    return list(found.values())


def nearest(client: Redis, keys: Keys, queue: str) -> str:
    """In words, the live seat that comes closest to serving `queue`."""
    offers = [(q, ad) for ad in seats(client, keys) for q in ad.queues]
    same = [(q, ad) for q, ad in offers if queues.kind_of(q) == queues.kind_of(queue)] or offers
    if not same:
        return "no seat is live at all"
    best = max(same, key=lambda offer: difflib.SequenceMatcher(None, offer[0], queue).ratio())
    but = "" if best[1].state == "ready" else f", which is {best[1].state}: {best[1].reason}"
    return f"the closest is {best[0]}, served by {best[1].seat}{but}"


def _live(client: Redis, keys: Keys) -> list[str]:
    # Not by SCAN, which walks every key of the server, while jobs are being admitted.
    names: list[bytes] = client.zrange(keys("seats"), 0, -1)  # type: ignore[assignment]
    return [name.decode() for name in names]
