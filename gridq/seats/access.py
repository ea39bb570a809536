"""Whom seats are lent to: some to certain agents and teams alone (`lends_to` of an advertisement)."""

from __future__ import annotations

import json
from collections.abc import Sequence

from redis import Redis

from gridq.errors import NoLiveSeat
from gridq.jobs.record import JobOptions
from gridq.protocol.models import Advertisement
from gridq.store.keys import Keys
from gridq.store.scripts import Scripts

FIX = "ask the owner of one to lend it to this agent, or submit with wait_for_seat"


def lent(
    scripts: Scripts, job: str, seats: Sequence[Advertisement], options: JobOptions, key: str
) -> list[Advertisement]:
    """Those of `seats` that are lent to the submitter of `job`; `key` is the id of its API key.

    NoLiveSeat: the seat that it is pinned to is not, and the submitter would not wait.
    """
    if all(seat.lent_to(options.agent) for seat in seats):
        return list(seats)
    team = _team(scripts.client, scripts.keys, job, options.agent, key)
    found = [seat for seat in seats if seat.lent_to(options.agent, team)]
    pinned = next((seat for seat in seats if seat.seat == options.pin and seat not in found), None)
    if pinned is not None and not options.wait_for_seat:
        raise NoLiveSeat(
            f"The seat {pinned.seat} is not lent to the agent {options.agent!r}",
            {
                "path": "pin",
                "queue": pinned.queues[0],
                "reason": _told(pinned.seat, pinned.lends_to),
                "fix": FIX,
            },
        )
    return found


def barred(reply: Sequence[str], agent: str) -> NoLiveSeat:
    """The refusal that a script's reply stands for: `barred`, the queue and its fall-backs with | between,
    each seat and whom it is lent to.
    """
    _, queue, *pairs = reply
    links = queue.split("|")
    told = (_told(seat, _names(words)) for seat, words in zip(pairs[::2], pairs[1::2], strict=True))
    seats = list(dict.fromkeys(told))
    more = f" and {len(seats) - 3} more" if len(seats) > 3 else ""
    return NoLiveSeat(
        f"No live seat of {' or '.join(links)} is lent to the agent {agent!r}",
        {"path": "agent", "queue": links[0], "reason": "; ".join(seats[:3]) + more, "fix": FIX},
    )


def _team(client: Redis, keys: Keys, job: str, agent: str, key: str) -> str:
    """The team of an agent, as admit.lua finds it: by the quotas file, else by its API key."""
    limits = client.hget(keys("limits"), f"a:{agent}")
    team = limits.decode().partition(" ")[0] if isinstance(limits, bytes) else "-"
    if team != "-":
        return team
    known = key.encode() or client.hget(keys("submitted", job), "key")
    record = client.hget(keys("api_keys"), known.decode()) if isinstance(known, bytes) else None
    return str(json.loads(record).get("team") or "") if isinstance(record, bytes) else ""


def _names(words: str) -> list[str]:
    return [f"team:{word[2:]}" if word.startswith("t:") else word[2:] for word in words.split()]


def _told(seat: str, names: Sequence[str]) -> str:
    return f"{seat} is lent to {', '.join(names)} alone"
