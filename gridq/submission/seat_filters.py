"""Which seats a submitter wants for a job, and which it does not: `pin` and `avoid` of JobOptions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gridq.errors import NoLiveSeat
from gridq.jobs.record import JobOptions
from gridq.protocol import queue_names
from gridq.protocol.models import Advertisement

ONLY = "="
"""Before a seat's name among those that may not take a stage: all others may not, those too that join later
(`has` in store/lua/lib/base.lua).
"""


def find_excluded_seats(
    steps: Mapping[int, Sequence[str]], seats: Sequence[Advertisement], options: JobOptions
) -> dict[int, list[list[str]]]:
    """Step → for each of its queues the seats that may not take it from there, of the steps (number → its
    queue and its fall-backs) of one job.

    A pin holds for the steps that the pinned seat serves, at whichever of their queues. NoLiveSeat, unless
    the submitter would wait: it serves none of them, or of some step every seat is to be avoided.
    """
    found: dict[int, list[list[str]]] = {}
    pinned = next((seat for seat in seats if seat.seat == options.pin), None)
    serves = set(pinned.queues) if pinned is not None else set[str]()
    avoided = sorted(set(options.avoid))
    for step, links in steps.items():
        if queue_names.PURE in links:  # whichever slot completes what it waits for runs it
            continue
        serving = [[seat.seat for seat in seats if queue in seat.queues] for queue in links]
        anybody = list(dict.fromkeys(name for names in serving for name in names))
        if anybody and not set(anybody) - set(avoided) and not options.wait_for_seat:
            raise _nobody_else(links, anybody)
        apart = [avoided for _ in links]
        if options.pin is not None and (pinned is None or not serves.isdisjoint(links)):
            others = [[name for name in names if name != options.pin] for names in serving]
            apart = [[*sorted({*avoided, *names}), ONLY + options.pin] for names in others]
        if any(apart):
            found[step] = apart
    needed = {queue for links in steps.values() for queue in links}
    if options.pin is not None and serves.isdisjoint(needed) and not options.wait_for_seat:
        raise _not_there(options.pin, pinned, sorted(needed - {queue_names.PURE}))
    return found


def _nobody_else(links: Sequence[str], serving: list[str]) -> NoLiveSeat:
    return NoLiveSeat(
        f"Every live seat of {' or '.join(links)} is to be avoided",
        {
            "path": "avoid",
            "queue": links[0],
            "reason": "it is served by " + ", ".join(serving[:5]),
            "fix": "avoid fewer seats, or submit with wait_for_seat",
        },
    )


def _not_there(seat: str, pinned: Advertisement | None, needed: list[str]) -> NoLiveSeat:
    what = "is not live" if pinned is None else "serves nothing that the job needs"
    return NoLiveSeat(
        f"The seat {seat} {what}",
        {
            "path": "pin",
            "queue": needed[0] if needed else "",
            "reason": "the job needs " + ", ".join(needed[:5]),
            "fix": "pin another seat or none; `gridq workers` lists them",
        },
    )
