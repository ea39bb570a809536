"""Compile a graph's text to a plan, with the stages that this process knows. No server is asked."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from gridq import stages
from gridq.config.settings import Settings
from gridq.errors import CapabilityConflict, InvalidField, UnknownCapability
from gridq.graph.catalogue import Catalogue, StageSpec, load_directory
from gridq.graph.compile import Placement, compile_plan
from gridq.graph.nodes import Graph, parse
from gridq.graph.plan import Plan
from gridq.graph.types import Type
from gridq.graph.validate import validate
from gridq.process.heap import pause_gc
from gridq.profiles.profile import Profile, find_demand
from gridq.protocol import queue_names
from gridq.protocol.models import Effect
from gridq.protocol.queue_aliases import NO_ALIASES, QueueAliases

MAX_COST_CENTS = 10_000_000
"""The highest cost that a stage may declare, so that numbers stay exact."""


LARGE_GRAPH_BYTES = 100_000
"""A longer text is compiled without garbage collection."""


def place_stage(
    spec: StageSpec,
    effects: list[Effect],
    path: str,
    profiles: Mapping[str, Profile],
    aliases: QueueAliases = NO_ALIASES,
) -> Placement:
    """Return the queue of a stage, its fall-backs and its declared cost.

    Built-in pure stages go to `gridq:pure`, other built-in stages to `gridq:local`, Python stages to the
    queue of their module, and all others to the capability that a profile demands for their effects. A Python
    stage goes to that too if it demands one and the profile runs Python stages. Raises CapabilityConflict,
    UnknownCapability and InvalidField.
    """
    cents = sum(_read_cents(effect, path) for effect in effects if effect.effect == "Cost")
    demand = find_demand(effects, profiles, path, aliases)
    runner, _, rest = spec.implementation.partition(":")
    fallbacks: tuple[str, ...] = ()
    profile = None if demand is None else profiles.get(queue_names.get_kind(demand.queue))
    runs_python = runner == "python" and profile is not None and profile.runs_python
    if runner in ("builtin", "python") and not runs_python:
        if demand is not None:
            raise CapabilityConflict(
                f"The stage {spec.name!r} needs {demand.queue}, but is implemented by {spec.implementation}",
                {
                    "path": path,
                    "expected": "an implementation of the kind it needs, such as llm:chat",
                    "fix": "put the model call and the code into two stages",
                },
            )
        if runner == "python":
            queue = queue_names.make_module_queue(rest.partition(":")[0])
        else:
            queue = queue_names.PURE if stages.is_pure(spec.implementation) else queue_names.LOCAL
    elif demand is None:
        raise UnknownCapability(
            f"The stage {spec.name!r} runs {spec.implementation}, but declares no effect that needs a seat",
            {"path": path, "expected": 'an effect such as {"effect": "Llm", "model": "any"}'},
        )
    else:
        queue, fallbacks = demand.queue, tuple(link.queue for link in demand.fallbacks)
    return Placement(queue=queue, micro_dollars=round(cents * 10_000), fallbacks=fallbacks)


def _read_cents(effect: Effect, path: str) -> float:
    """Return the cents that a Cost effect declares. Raises InvalidField."""
    cents = effect.fields.get("cents", 0)
    if isinstance(cents, bool) or not isinstance(cents, int | float) or not 0 <= cents <= MAX_COST_CENTS:
        raise InvalidField(
            "The cents of a Cost effect are not a valid amount",
            {"path": path, "expected": f"a number from 0 to {MAX_COST_CENTS}"},
        )
    return float(cents)


def load_local_catalogue(config: Settings, profiles: Mapping[str, Profile]) -> Catalogue:
    """Return the built-in stages, and those of the profiles, of GRIDQ_STAGES_DIR and of GRIDQ_STAGES."""
    specs = stages.load_builtin_specs() + [spec for profile in profiles.values() for spec in profile.stages()]
    catalogue = Catalogue(map(StageSpec.from_json, specs))
    if config.stages_dir is not None:
        catalogue = catalogue.extend(load_directory(config.stages_dir))
    if config.stages:
        catalogue = catalogue.extend(map(StageSpec.from_json, stages.load_modules(config.stages)))
    return catalogue


def compile_text(
    text: str | bytes,
    catalogue: Catalogue,
    config: Settings,
    profiles: Mapping[str, Profile],
    aliases: QueueAliases = NO_ALIASES,
) -> tuple[Graph, Type, Plan]:
    """Compile a graph's JSON text. Return (graph, type of its answer, plan). Raises GraphError."""
    with pause_gc(len(text) > LARGE_GRAPH_BYTES):
        graph = parse(text, max_depth=config.max_depth)
        answer = validate(graph, catalogue)
        placed = partial(place_stage, profiles=profiles, aliases=aliases)
        return graph, answer, compile_plan(graph, catalogue, placed, max_steps=config.max_steps)
