"""Which seats a submitter wants for a job, and which it does not: `pin` and `avoid` of JobOptions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gridq import queues
from gridq.errors import NoLiveSeat
from gridq.jobs import JobOptions
from gridq.protocol import Advertisement

ONLY = "="
"""Before a seat's name among those that may not take a stage: all others may not, those too that join later
(`has` in store/lua/lib/base.lua).
"""


def kept_apart(
    steps: Mapping[int, str], seats: Sequence[Advertisement], options: JobOptions
) -> dict[int, list[str]]:
    """Step → the seats that may not take it, of the steps (number → queue) of one job.

    A pin holds for the steps that the pinned seat serves. NoLiveSeat, unless the submitter would wait: it
    serves none of them, or of some step every seat is to be avoided.
    """
    found: dict[int, list[str]] = {}
    pinned = next((seat for seat in seats if seat.seat == options.pin), None)
    serves = set(pinned.queues) if pinned is not None else set[str]()
    for step, queue in steps.items():
        if queue == queues.PURE:  # whichever lane completes what it waits for runs it
            continue
        serving = [seat.seat for seat in seats if queue in seat.queues]
        apart = sorted(set(options.avoid))
        if serving and not set(serving) - set(apart) and not options.wait_for_seat:
            raise _nobody_else(queue, serving)
        if options.pin is not None and (queue in serves or pinned is None):
            others = [seat for seat in serving if seat != options.pin]
            apart = [*sorted({*apart, *others}), ONLY + options.pin]
        if apart:
            found[step] = apart
    if options.pin is not None and serves.isdisjoint(steps.values()) and not options.wait_for_seat:
        raise _not_there(options.pin, pinned, sorted(set(steps.values()) - {queues.PURE}))
    return found


def _nobody_else(queue: str, serving: list[str]) -> NoLiveSeat:
    return NoLiveSeat(
        f"Every live seat of {queue} is to be avoided",
        {
            "path": "avoid",
            "queue": queue,
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
