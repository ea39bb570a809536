"""The seats that may not take a step: its submitter excludes them, or they do not meet the step's demand.

A queue's name cannot say everything that a stage demands, such as the memory of a GPU. So the seats that
serve a step's queues are compared with its demand one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from gridq.errors import DemandUnmet, NoLiveSeat
from gridq.graph.plan import Plan
from gridq.jobs.record import JobOptions
from gridq.profiles.profile import Profile, find_demand
from gridq.protocol import queue_names
from gridq.protocol.models import Advertisement, Demand, Effect
from gridq.protocol.queue_aliases import NO_ALIASES, QueueAliases
from gridq.seats.access import ONLY
from gridq.stages.python import PREFIX, parse_module

MAX_NAMED = 5
"""Seats and queues that one error names."""

ExcludedSeats = Mapping[int, Sequence[str]]
"""Step → for each of its queues the seats that may not take it from there, separated by commas."""


@dataclass(frozen=True, slots=True)
class StepDemand:
    """A step that demands more than its queue's name says."""

    step: int
    path: str
    demand: Demand


def find_demands(
    plan: Plan, profiles: Mapping[str, Profile], aliases: QueueAliases = NO_ALIASES
) -> tuple[StepDemand, ...]:
    """Return the steps of a plan whose seats must be compared with their demand."""
    found = []
    for index, step in enumerate(plan.steps):
        if step.ops and queue_names.get_kind(step.queue) in profiles:
            effects = [Effect(**effect) for effect in step.ops[0].effects]
            demand = find_demand(effects, profiles, step.path, aliases)
            if demand is not None and step.ops[0].implementation.startswith(PREFIX):
                demand = _add_module(demand, parse_module(step.ops[0].implementation))
            if demand is not None and any(one.needs for one in demand.alternatives):
                found.append(StepDemand(index, step.path, demand))
    return tuple(found)


def _add_module(demand: Demand, module: str) -> Demand:
    """Return `demand` with the need of a Python module: only seats that have loaded it can run the stage."""
    fallbacks = tuple(_add_module(fallback, module) for fallback in demand.fallbacks)
    return demand.model_copy(update={"needs": {**demand.needs, "module": module}, "fallbacks": fallbacks})


def find_excluded_seats(
    queues: Mapping[int, Sequence[str]],
    demands: Sequence[StepDemand],
    seats: Sequence[Advertisement],
    options: JobOptions,
    profiles: Mapping[str, Profile],
) -> ExcludedSeats:
    """Return the excluded seats of the steps that have any.

    `queues`: step → its queue and its fall-backs. `seats`: the live seats that are lent to the submitter.
    Raises NoLiveSeat if no seat is left for a step and the submitter does not wait.
    """
    excluded = exclude_by_options(queues, seats, options)
    for demand in demands:
        unfit = exclude_by_demand(demand, seats, profiles, wait=options.wait_for_seat)
        by_options = excluded.get(demand.step) or [[] for _ in unfit]
        both = zip(by_options, unfit, strict=True)
        excluded[demand.step] = [list(dict.fromkeys([*names, *more])) for names, more in both]
    return {step: tuple(map(",".join, names)) for step, names in excluded.items() if any(names)}


def exclude_by_options(
    queues: Mapping[int, Sequence[str]], seats: Sequence[Advertisement], options: JobOptions
) -> dict[int, list[list[str]]]:
    """Return for each step, and each of its queues, the seats that `pin` and `avoid` exclude.

    A pin applies to the steps that the pinned seat serves, at any of their queues. Unless the submitter
    waits, it raises NoLiveSeat if the pinned seat serves no step, or `avoid` excludes every seat of a step.
    """
    found: dict[int, list[list[str]]] = {}
    pinned = next((seat for seat in seats if seat.seat == options.pin), None)
    pinned_queues = set(pinned.queues) if pinned is not None else set[str]()
    avoided = sorted(set(options.avoid))
    for step, step_queues in queues.items():
        if queue_names.PURE in step_queues:  # the slot that completes the step before runs it
            continue
        serving = [[seat.seat for seat in seats if queue in seat.queues] for queue in step_queues]
        any_serving = list(dict.fromkeys(name for names in serving for name in names))
        if any_serving and not set(any_serving) - set(avoided) and not options.wait_for_seat:
            raise _build_all_avoided_error(step_queues, any_serving)
        excluded = [avoided for _ in step_queues]
        if options.pin is not None and (pinned is None or not pinned_queues.isdisjoint(step_queues)):
            others = [[name for name in names if name != options.pin] for names in serving]
            excluded = [[*sorted({*avoided, *names}), ONLY + options.pin] for names in others]
        if any(excluded):
            found[step] = excluded
    needed = {queue for step_queues in queues.values() for queue in step_queues}
    if options.pin is not None and pinned_queues.isdisjoint(needed) and not options.wait_for_seat:
        raise _build_pin_error(options.pin, pinned, sorted(needed - {queue_names.PURE}))
    return found


def exclude_by_demand(
    step: StepDemand, seats: Sequence[Advertisement], profiles: Mapping[str, Profile], *, wait: bool
) -> list[list[str]]:
    """Return for each alternative of a step's demand the seats of its queue that do not meet it.

    A seat is accepted if its kind is not enabled here, or this version cannot read its capability. Unless the
    submitter waits, it raises DemandUnmet with what the seats lack if none of them meets the demand.
    """
    found, reasons, any_fits = [], [], False
    for alternative in step.demand.alternatives:
        serving = [ad for ad in seats if alternative.queue in ad.queues]
        mismatches = _find_mismatches(alternative, serving, profiles)
        found.append(sorted(mismatches))
        reasons += [f"{seat}: {mismatch}" for seat, mismatch in sorted(mismatches.items())]
        any_fits = any_fits or len(mismatches) < len(serving)
    if reasons and not any_fits and not wait:
        names = " or ".join(alternative.queue for alternative in step.demand.alternatives)
        raise DemandUnmet(
            f"No live seat of {names} meets the stage's demand",
            {
                "path": step.path,
                "queue": step.demand.queue,
                "reason": "; ".join(dict.fromkeys(reasons[:3])),
                "fix": "ask for less, or submit with wait_for_seat",
            },
        )
    return found


def _find_mismatches(
    demand: Demand, serving: Sequence[Advertisement], profiles: Mapping[str, Profile]
) -> dict[str, str]:
    """Return seat → why it does not meet the demand."""
    found: dict[str, str] = {}
    for ad in serving:
        profile = profiles.get(ad.kind)
        if profile is not None:
            try:
                capability = profile.Capability.model_validate(ad.capability)
            except ValidationError:  # its worker has another version
                continue
            mismatch = profile.explain_mismatch(demand, capability)
            if mismatch:
                found[ad.seat] = mismatch
    return found


def _build_all_avoided_error(queues: Sequence[str], serving: list[str]) -> NoLiveSeat:
    return NoLiveSeat(
        f"The option avoid excludes every live seat of {' or '.join(queues)}",
        {
            "path": "avoid",
            "queue": queues[0],
            "reason": "it is served by " + ", ".join(serving[:MAX_NAMED]),
            "fix": "avoid fewer seats, or submit with wait_for_seat",
        },
    )


def _build_pin_error(seat: str, pinned: Advertisement | None, needed: list[str]) -> NoLiveSeat:
    problem = "is not live" if pinned is None else "serves nothing that the job needs"
    return NoLiveSeat(
        f"The seat {seat} {problem}",
        {
            "path": "pin",
            "queue": needed[0] if needed else "",
            "reason": "the job needs " + ", ".join(needed[:MAX_NAMED]),
            "fix": "pin another seat or none; `gridq workers` lists them",
        },
    )
