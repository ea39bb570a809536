"""Which seats may take a stage: whom they are lent to (`lends_to`), and which the stage excludes."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

from redis import Redis

from gridq.errors import NoLiveSeat
from gridq.jobs.record import JobOptions
from gridq.protocol.models import Advertisement
from gridq.store.keys import Keys
from gridq.store.replies import NotLent
from gridq.store.scripts import Scripts

FIX = "ask the owner of one to lend it to this agent, or submit with wait_for_seat"

MAX_NAMED = 3
"""Seats that one error names."""

ONLY = "="
"""Before a seat's name among the excluded seats of a stage: all other seats are excluded too, also those that
join later.
"""


def is_excluded(seat: str, names: Collection[str]) -> bool:
    """Return whether a stage excludes a seat, as `is_excluded` in store/lua/lib/base.lua does.

    `names`: its excluded seats, and with ONLY before it the one that it is pinned to.
    """
    if not names:
        return False
    pinned = find_pinned(names)
    return seat in names or (pinned not in ("", seat))


def find_pinned(names: Collection[str]) -> str:
    """Return the only seat that a stage may run on; empty if there is no such seat."""
    return next((name[len(ONLY) :] for name in names if name.startswith(ONLY)), "")


def filter_lent_seats(
    scripts: Scripts, job: str, seats: Sequence[Advertisement], options: JobOptions, key_id: str
) -> list[Advertisement]:
    """Return the seats that the submitter of `job` may use. `key_id`: the id of its API key, or empty.

    Raises NoLiveSeat if the seat that the job is pinned to is not among them, unless the submitter waits.
    """
    if all(seat.is_lent_to(options.agent) for seat in seats):
        return list(seats)
    team = find_team(scripts.client, scripts.keys, job, options.agent, key_id)
    lent = [seat for seat in seats if seat.is_lent_to(options.agent, team)]
    pinned = next((seat for seat in seats if seat.seat == options.pin and seat not in lent), None)
    if pinned is not None and not options.wait_for_seat:
        raise NoLiveSeat(
            f"The seat {pinned.seat} is not lent to the agent {options.agent!r}",
            {
                "path": "pin",
                "queue": pinned.queues[0],
                "reason": describe_access(pinned.seat, pinned.lends_to),
                "fix": FIX,
            },
        )
    return lent


def build_not_lent_error(reply: NotLent, agent: str) -> NoLiveSeat:
    """Return the refusal that a script's reply stands for."""
    queues = reply.queue.split("|")
    seats = list(dict.fromkeys(describe_access(seat, _read_names(words)) for seat, words in reply.seats))
    more = f" and {len(seats) - MAX_NAMED} more" if len(seats) > MAX_NAMED else ""
    return NoLiveSeat(
        f"No live seat of {' or '.join(queues)} is lent to the agent {agent!r}",
        {"path": "agent", "queue": queues[0], "reason": "; ".join(seats[:MAX_NAMED]) + more, "fix": FIX},
    )


def is_lent_to(words: str, agent: str, team: str) -> bool:
    """Return whether a seat is lent to an agent of a team, as `is_lent_to` in store/lua/lib/access.lua does.

    `words`: the field `lent_to` of the seat's record, empty for everybody. `team`: or empty.
    """
    names = words.split()
    return not names or f"a:{agent}" in names or (team != "" and f"t:{team}" in names)


def describe_access(seat: str, names: Sequence[str]) -> str:
    """Say whom a seat is lent to."""
    return f"{seat} is lent only to {', '.join(names)}"


def find_team(client: Redis, keys: Keys, job: str, agent: str, key_id: str) -> str:
    """Return an agent's team as admit.lua finds it: by the quotas file, else by its API key; or empty."""
    limits = client.hget(keys("limits"), f"a:{agent}")
    team = limits.decode().partition(" ")[0] if isinstance(limits, bytes) else "-"
    if team != "-":
        return team
    known = key_id.encode() or client.hget(keys("submitted", job), "api_key")
    record = client.hget(keys("api_keys"), known.decode()) if isinstance(known, bytes) else None
    return str(json.loads(record).get("team") or "") if isinstance(record, bytes) else ""


def _read_names(words: str) -> list[str]:
    return [f"team:{word[2:]}" if word.startswith("t:") else word[2:] for word in words.split()]
