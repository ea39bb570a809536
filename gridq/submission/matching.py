"""What a queue's name cannot say: which of the seats that serve a step's queue meet all of its demand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from gridq.errors import NoLiveSeat
from gridq.graph.plan import Plan
from gridq.profiles.profile import Profile, find_demand
from gridq.protocol import queue_names
from gridq.protocol.models import Advertisement, Demand, Effect


@dataclass(frozen=True, slots=True)
class StepDemand:
    """A step whose demand says more than its queue."""

    step: int
    path: str
    demand: Demand


def find_demands(plan: Plan, profiles: Mapping[str, Profile]) -> tuple[StepDemand, ...]:
    """The steps of `plan` whose seats must be looked at one by one."""
    found = []
    for index, step in enumerate(plan.steps):
        if step.ops and queue_names.get_kind(step.queue) in profiles:
            effects = [Effect(**effect) for effect in step.ops[0].effects]
            demand = find_demand(effects, profiles, step.path)
            if demand is not None and any(link.needs for link in demand.alternatives):
                found.append(StepDemand(index, step.path, demand))
    return tuple(found)


def find_unfit_seats(
    want: StepDemand, seats: Sequence[Advertisement], profiles: Mapping[str, Profile], *, wait: bool
) -> list[list[str]]:
    """Of each link of the step's demand the live seats of its queue that do not meet it: they are not to be
    asked.

    NoLiveSeat: none of those that serve one of the queues does (and the submitter would not `wait`), with
    what the closest lack. A seat whose kind is not enabled here, or that says what this version cannot read,
    is taken at its word.
    """
    found, reasons, fits = [], [], False
    for link in want.demand.alternatives:
        serving = [ad for ad in seats if link.queue in ad.queues]
        lacking = _lacking(link, serving, profiles)
        found.append(sorted(lacking))
        reasons += [f"{seat}: {lack}" for seat, lack in sorted(lacking.items())]
        fits = fits or len(lacking) < len(serving)
    if reasons and not fits and not wait:
        called = " or ".join(link.queue for link in want.demand.alternatives)
        raise NoLiveSeat(
            f"No live seat of {called} meets the stage's demand",
            {
                "path": want.path,
                "queue": want.demand.queue,
                "reason": "; ".join(dict.fromkeys(reasons[:3])),
                "fix": "ask for less, or submit with wait_for_seat",
            },
        )
    return found


def _lacking(
    demand: Demand, serving: Sequence[Advertisement], profiles: Mapping[str, Profile]
) -> dict[str, str]:
    """Seat → what it lacks for `demand`."""
    found: dict[str, str] = {}
    for ad in serving:
        profile = profiles.get(ad.kind)
        if profile is not None:
            try:
                capability = profile.Capability.model_validate(ad.capability)
            except ValidationError:  # its worker is of another version
                continue
            lack = profile.explain_mismatch(demand, capability)
            if lack:
                found[ad.seat] = lack
    return found
