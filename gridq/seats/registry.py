"""The live seats: their advertisements, what the grid knows of them, and the stages their machines offer.

A seat's worker writes its advertisement, a key with a TTL, with each heartbeat. It only describes the seat.
Whether the seat is live depends on its lease (renew.lua), and budgets are the grid's own records.
"""

from __future__ import annotations

import difflib
import json
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from pydantic import Field, ValidationError
from redis import Redis
from redis.exceptions import ResponseError

from gridq.protocol import queue_names
from gridq.protocol.meters import (
    FREE,
    GRID,
    NO_ESTIMATE,
    OWN,
    Meter,
    SeatRates,
    UsageEstimate,
    find_shortage,
    find_tightest,
    parse_budget,
    parse_shared_accounts,
)
from gridq.protocol.models import Advertisement, Json
from gridq.protocol.seat_states import NEEDS_OWNER
from gridq.store.capacity import write_record
from gridq.store.connection import now_ms
from gridq.store.keys import Keys
from gridq.store.reliability import compute_reliability

log = logging.getLogger(__name__)

TTL_HEARTBEATS = 3
"""Heartbeats for which an advertisement is valid."""

MIN_SIMILARITY = 0.6
"""The similarity of names from which a capability of the same kind is suggested, from 0 to 1."""

MAX_NAMED = 5
"""Capabilities and seats that one sentence names."""

MAX_OTHERS = 32
"""The most seats that `is_served_by_others` reads at once."""

DRAIN_TTL_MS = 40 * 24 * 3_600_000
"""The time for which an operator's drain outlives the seat: the life of the seat's record."""

ROUTER_KIND = "router"
"""The kind of a router's seat, which runs built-in pure stages and has no advertisement."""

HTTP_MACHINE = "http"
"""The machine name of all seats whose workers are reached over HTTP: `http.<worker_id>`."""


class LiveSeat(Advertisement):
    """A live seat: its worker's advertisement, and what the grid itself knows.

    `busy`: the slots in use. `wake_ups`: the messages in its own queue. Money is in micro-dollars, times in
    seconds since 1970. `stale`: its worker has sent no heartbeat for three intervals; kind, capability and
    metrics are unknown then.
    """

    busy: int = 0
    wake_ups: int = 0
    warm: list[str] = Field(default_factory=list, description="the queues whose model it has loaded")
    pass_over: dict[str, float] = Field(
        default_factory=dict,
        description="queues whose stages wait while its loaded models are in use, and for how many seconds",
    )
    meters: list[Meter] = Field(default_factory=list, description="all that apply to it, also shared ones")
    budget: int | None = Field(
        None, description="the limit of the money budget with least left; null: no money budget"
    )
    budget_left: int | None = None
    budget_until: float | None = Field(None, description="when that budget resets")
    prices: tuple[int, int] = Field((0, 0), description="micro-dollars per million tokens, in and out")
    hourly: int = Field(0, description="micro-dollars per hour of a slot")
    rates: SeatRates = Field(FREE, exclude=True)
    requests_per_minute: int | None = Field(None, description="requests in any minute; null: no limit")
    rate_until: float | None = Field(None, description="when it may make requests again; null: now")
    reliability: float = Field(
        1.0, description="the part of its attempts that succeeds, from 0 to 1; recent attempts count most"
    )
    stale: bool = False
    drain_acknowledged: bool = Field(
        True, description="whether its worker applies the operator's last command: drain, or undrain"
    )

    def find_shortage(self, queue: str, cost: int, estimate: UsageEstimate = NO_ESTIMATE) -> Meter | None:
        """Return the meter without room for a stage of this cost in micro-dollars; None if all have."""
        return find_shortage(self.meters, queue, cost, estimate, self.rates)

    @property
    def free(self) -> int:
        """The number of stages it would take now."""
        return max(self.concurrency - self.busy, 0) if self.state == "ready" else 0


def advertise(client: Redis, keys: Keys, ad: Advertisement, heartbeat: float) -> None:
    """Publish a seat's advertisement, valid for three heartbeats."""
    ttl_ms = int(TTL_HEARTBEATS * heartbeat * 1000)
    write_record(client, "SET", keys("advertisement", ad.seat), ad.model_dump_json(), "PX", ttl_ms)


def withdraw(client: Redis, keys: Keys, seat: str) -> None:
    """Delete a seat's advertisement."""
    client.unlink(keys("advertisement", seat))


def read_advertisements(client: Redis, keys: Keys) -> list[Advertisement]:
    """Return the advertisements of the live seats, by name."""
    names = [keys("advertisement", seat) for seat in _read_names(client, keys)]
    texts = client.mget(names) if names else []
    return sorted(filter(None, map(_parse_advertisement, texts)), key=lambda ad: ad.seat)


def read_live_seats(
    client: Redis, keys: Keys, *, routers: bool = True, only: str | None = None
) -> list[LiveSeat]:
    """Return the live seats in the order of their names, those with a stale advertisement too.

    `routers`: whether to include the routers' seats. `only`: the one seat to return, if it is live.
    """
    names = sorted(_read_names(client, keys)) if only is None else [only]
    if not names:
        return []
    pipe = client.pipeline(transaction=False)
    pipe.time()
    for seat in names:
        pipe.hgetall(keys("seat", seat))
        pipe.hlen(keys("slots", seat))
        pipe.llen(keys.queue(queue_names.make_seat_queue(seat)))
        pipe.get(keys("advertisement", seat))
        pipe.get(keys("drain", seat))
        pipe.llen(keys("claim_times", seat))
        pipe.lindex(keys("claim_times", seat), -1)
    clock, *replies = pipe.execute(raise_on_error=False)
    now = clock[0] + clock[1] / 1e6
    read: dict[str, list[Any]] = {}
    for at, seat in enumerate(names):
        read[seat] = replies[at * 7 : at * 7 + 7]
        if faults := [reply for reply in read[seat] if isinstance(reply, ResponseError)]:
            _leave_out(seat, faults[0])
            del read[seat]
    shared: Any = {}
    if any(record.get(b"shared_budgets") for record, *_ in read.values()):
        shared = client.hgetall(keys("meters"))
    found = []
    for seat, its_replies in read.items():
        try:
            found.append(_build_live_seat(seat, now, its_replies, shared))
        except ValueError as exc:
            _leave_out(seat, exc)
    return [seat for seat in found if seat is not None and (routers or seat.kind != ROUTER_KIND)]


def _leave_out(seat: str, fault: Exception) -> None:
    """Log that a seat's record is damaged. One such seat must not affect the others."""
    log.warning("ignoring the seat %s, whose record is damaged: %s", seat, fault)


def _build_live_seat(
    seat: str, now: float, replies: list[Any], shared: dict[bytes, bytes]
) -> LiveSeat | None:
    record, busy, wake_ups, text, drain, claims, oldest = replies
    record = {name.decode(): value.decode() for name, value in record.items()}
    if "incarnation" not in record or "concurrency" not in record:  # it has left meanwhile
        return None
    ad = _parse_advertisement(text)
    machine, _, name = seat.partition(".")
    if ad is None:
        serves = record.get("queues", "").split()
        ad = Advertisement(
            seat=seat,
            machine=machine,
            worker=f"{name}@{machine}",
            incarnation=record["incarnation"],
            kind=ROUTER_KIND if serves == [queue_names.PURE] else "",
            concurrency=int(record["concurrency"]),
            queues=serves,
        )
    fields = ad.model_dump()
    fields |= {"concurrency": int(record["concurrency"]), "busy": busy, "wake_ups": wake_ups}
    fields |= {"warm": record.get("warm", "").split(), "stale": text is None and ad.kind != ROUTER_KIND}
    waits = (each.split("=") for each in record.get("pass_over", "").split())
    fields["pass_over"] = {queue: int(ms) / 1000 for queue, ms in waits}
    fields["meters"] = _parse_meters(record, now, shared)
    rates = SeatRates.from_record(record)
    fields |= {"prices": rates.prices, "hourly": rates.hourly or 0, "rates": rates}
    fields |= _find_limits(record, fields["meters"], now, claims, oldest)
    fields["reliability"] = round(compute_reliability(record.get("reliability"), now * 1000), 3)
    draining = record.get("draining")
    fields |= {"drain_acknowledged": (drain is None) == (draining != "op") or draining == "1"}
    if drain is not None:
        fields |= {"state": "draining", "reason": "an operator drains it"}
        fields |= {"since": float(drain), "until": None}
    elif draining is not None and ad.state == "ready":
        fields |= {"state": "draining", "reason": "it takes no more work"}
    return LiveSeat(**fields)


def _parse_meters(record: dict[str, str], now: float, shared: dict[bytes, bytes]) -> list[Meter]:
    """Return all meters that apply to a seat, each with the queues it applies to."""
    found = [meter for which in (OWN, GRID) for meter in parse_budget(record.get(which), which, now * 1000)]
    for name, queues in parse_shared_accounts(record.get("shared_budgets")).items():
        found += parse_budget(shared.get(name.encode()), name, now * 1000, queues)
    return found


def _find_limits(
    record: dict[str, str], meters: list[Meter], now: float, claims: int, oldest: bytes | None
) -> dict[str, Json]:
    """Return the fields that say what the seat may still give.

    Its money is that of the meter with least left among those that apply to all of its queues. Its requests
    per minute are the lower of those of its machine and of the quotas file.
    """
    found: dict[str, Json] = {}
    tightest = find_tightest((meter for meter in meters if not meter.queues), "money")
    if tightest is not None:
        found |= {"budget": tightest.limit, "budget_left": tightest.remaining}
        found["budget_until"] = tightest.resets_at / 1000 if tightest.resets_at else None
    rates = [
        int(record[name]) for name in ("requests_per_minute", "quota_requests_per_minute") if record.get(name)
    ]
    if rates:
        found["requests_per_minute"] = min(rates)
        next_at = now if oldest is None else float(oldest) / 1000 + 60
        found["rate_until"] = next_at if claims >= min(rates) and next_at > now else None
    return found


def _parse_advertisement(text: bytes | str | None) -> Advertisement | None:
    """Parse an advertisement; None if there is none, or its worker has an incompatible version.

    One such seat must not affect the others.
    """
    try:
        return None if text is None else Advertisement.model_validate_json(text)
    except ValidationError:
        log.warning("ignoring an advertisement of an incompatible version: upgrade its worker")
        return None


def is_served_by_others(client: Redis, keys: Keys, queue: str, seat: str) -> bool:
    """Return whether a seat other than `seat` serves `queue` for everybody, and not as a last resort.

    If more than MAX_OTHERS seats serve it, a random sample of so many is read.
    """
    members: Any = client.srandmember(keys("serving", queue), MAX_OTHERS)
    names = [name.decode() for name in members]
    found = [keys("advertisement", name) for name in names if name != seat]
    ads = map(_parse_advertisement, client.mget(found) if found else [])
    return any(ad is not None and queue not in ad.last_resort and not ad.lends_to for ad in ads)


def drain(client: Redis, keys: Keys, seat: str) -> None:
    """Let a seat take no more work until `undrain`. Its worker applies this with its next renewal."""
    client.set(keys("drain", seat), now_ms(client) // 1000, nx=True, px=DRAIN_TTL_MS)


def undrain(client: Redis, keys: Keys, seat: str) -> bool:
    """Let a drained seat take work again. Return False if it was not drained."""
    return bool(client.delete(keys("drain", seat)))


def publish_stages(
    client: Redis, keys: Keys, machine: str, specs: list[dict[str, Json]], heartbeat: float
) -> None:
    """Publish the user's stages of a machine for the compiler, valid for three heartbeats."""
    if specs:
        ttl_ms = int(TTL_HEARTBEATS * heartbeat * 1000)
        write_record(client, "SET", keys("stages", machine), json.dumps(specs), "PX", ttl_ms)


def read_published_stages(client: Redis, keys: Keys) -> list[dict[str, Json]]:
    """Return the stages that live machines offer, without duplicates."""
    machines = {seat.partition(".")[0] for seat in _read_names(client, keys)}
    names = [keys("stages", machine) for machine in sorted(machines)]
    found: dict[str, dict[str, Json]] = {}
    for text in client.mget(names) if names else []:
        try:
            for spec in json.loads(text) if text else []:
                found.setdefault(json.dumps(spec, sort_keys=True), spec)
        except (ValueError, TypeError):
            log.warning("ignoring the stages of a machine: they are damaged")
    return list(found.values())


def list_offers(seats: list[LiveSeat]) -> list[dict[str, Json]]:
    """Return the capabilities of seats.

    Each has its queue, the seats that serve it, those that have its model loaded, whether one of them can
    load it, and the numbers of slots and of free slots.
    """
    found: dict[str, dict[str, Any]] = {}
    for seat in seats:
        models = list_model_names(seat.capability) if "model_load_seconds_count" in seat.metrics else []
        loadable = {queue_names.make_slug(name) for name in models}
        for queue in seat.queues:
            kind, _, slug = queue.partition(":")
            if kind == queue_names.OWN_KIND:
                continue
            empty = {"queue": queue, "seats": [], "loaded": [], "loads": False}
            offer = found.setdefault(queue, empty | {"concurrency": 0, "free_slots": 0})
            offer["seats"].append(seat.seat)
            offer["concurrency"] += seat.concurrency
            offer["free_slots"] += seat.free
            offer["loads"] = offer["loads"] or slug in loadable
            if queue in seat.warm:
                offer["loaded"].append(seat.seat)
    return [found[queue] for queue in sorted(found)]


def list_model_names(capability: Mapping[str, Json]) -> list[str]:
    """Return the names of the models that a seat's capability describes."""
    listed = capability.get("models")
    models = listed if isinstance(listed, list) else []
    names = [model.get("name") for model in models if isinstance(model, dict)]
    return [name for name in names if isinstance(name, str) and name]


def explain_no_seat(queue: str, live: list[LiveSeat]) -> str:
    """Explain why no seat serves `queue`.

    It names the seats that serve it but take no work; else the live seat with the most similar capability;
    else what seats of its kind, or all live seats, serve.
    """
    if queue == queue_names.PURE and not has_router(live):
        return queue_names.NO_ROUTER
    if not live:
        return "no seat is live"
    serving = [seat for seat in live if queue in seat.queues]
    if serving:
        return "; ".join(_describe_state(seat) for seat in serving[:MAX_NAMED])
    in_cooldown = [(seat, each) for seat in live for each in seat.models_in_cooldown if queue in each.queues]
    if in_cooldown:
        return "; ".join(
            f"{seat.seat} has it, but its model {each.model} is in cooldown: {each.reason}"
            for seat, each in in_cooldown[:MAX_NAMED]
        )
    too_large = explain_too_large(queue, live)
    if too_large:
        return too_large
    offers = {q: seat for seat in live for q in queue_names.list_offered(seat.queues)}
    kind = queue_names.get_kind(queue)
    same = [q for q in offers if queue_names.get_kind(q) == kind]
    closest = max(same, key=lambda offer: _compare_names(offer, queue), default=None)
    if closest is not None and _compare_names(closest, queue) >= MIN_SIMILARITY:
        seat = offers[closest]
        state = "" if seat.state == "ready" else f", which is {seat.state}: {seat.reason}"
        return f"the closest is {queue_names.format_queue(closest)}, served by {seat.seat}{state}"
    if same:
        return f"the live seats of {kind} serve " + _join_names([*map(queue_names.format_queue, same)])
    offered = _join_names([*map(queue_names.format_queue, offers)])
    return f"no live seat is of kind {kind}; the live seats serve {offered}"


def explain_too_large(queue: str, live: Iterable[LiveSeat]) -> str:
    """Return in words how much memory the model of `queue` needs, and which device comes closest, if seats
    say in their capability that it is `too_large` for them; else "".
    """
    most, text = -1.0, ""
    for seat in live:
        listed = seat.capability.get("too_large")
        for each in listed if isinstance(listed, list) else ():
            if not isinstance(each, dict) or queue not in (each.get("queues") or ()):
                continue
            usable = _get_gb(seat.capability, "usable_mb")
            if usable > most:
                most, free = usable, min(usable, _get_gb(seat.capability, "free_mb"))
                text = (
                    f"{each.get('name')} needs {_get_gb(each, 'need_mb'):.1f} GB; best is {seat.worker} with "
                    f"{free:.1f} free of {_get_gb(seat.capability, 'memory_mb'):.1f} GB"
                )
    return text


def _get_gb(fields: Mapping[str, Json], name: str) -> float:
    """Return a field in MB as GB; 0 if it is missing or no number."""
    mb = fields.get(name)
    return mb / 1024 if isinstance(mb, int | float) else 0.0


def has_router(live: Iterable[LiveSeat]) -> bool:
    """Return whether a router is among the live seats."""
    return any(queue_names.PURE in seat.queues for seat in live)


def suggest_seat(queues: Collection[str], live: Sequence[LiveSeat]) -> str:
    """Return how to start, or repair, what would serve one of `queues`, which nobody serves."""
    if queue_names.PURE in queues:
        return queue_names.START_ROUTER
    if any(state in NEEDS_OWNER for state, _ in _list_causes(queues, live)):
        return "try again later; the seat's owner fixes the cause, and runs `gridq seat retry`"
    own = f"{queue_names.LOCAL}."
    modules = [queue.removeprefix(own) for queue in queues if queue.startswith(own)]
    if modules:
        return f"start a worker with GRIDQ_STAGES={modules[0]}, on a machine that can import it"
    return "start a worker with a seat that serves it (gridq probe shows a machine's)"


def find_seconds_back(queues: Collection[str], live: Sequence[LiveSeat], now: float) -> float | None:
    """Return the seconds until the first seat that serves one of `queues` takes work again; None if none
    will, or it is not known when.
    """
    ends = [until for _, until in _list_causes(queues, live) if until is not None]
    return min((max(end - now, 1.0) for end in ends), default=None)


def _list_causes(queues: Collection[str], live: Sequence[LiveSeat]) -> list[tuple[str, float | None]]:
    """Return what keeps seats, or their models, from serving one of `queues`: its state, and when it ends."""
    wanted = set(queues)
    seats = [(seat.state, seat.until) for seat in live if seat.state != "ready" and wanted & {*seat.queues}]
    models = [each for seat in live for each in seat.models_in_cooldown if wanted & {*each.queues}]
    return [*seats, *((each.state, each.until) for each in models)]


def _compare_names(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one.partition(":")[2], other.partition(":")[2]).ratio()


def _join_names(names: list[str]) -> str:
    shown = sorted(set(names))
    more = f" and {len(shown) - MAX_NAMED} more" if len(shown) > MAX_NAMED else ""
    return ", ".join(shown[:MAX_NAMED]) + more


def _describe_state(seat: LiveSeat) -> str:
    return f"{seat.seat} serves it, but is {seat.state}" + (f": {seat.reason}" if seat.reason else "")


def _read_names(client: Redis, keys: Keys) -> list[str]:
    # Not by SCAN: it would walk every key of the server for each admission.
    names: list[bytes] = client.zrange(keys("seats"), 0, -1)  # type: ignore[assignment]
    return [name.decode() for name in names]
