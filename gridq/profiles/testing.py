"""For tests of the grid and of profiles: a profile without a model, and the suite every profile must pass.

`FakeProfile` is the kind `bench`. Its seats serve `bench:any` and the slugs they are given, and its stages do
what their name says: echo, sleep, fail, blame the seat, stream, spend, or kill their own child.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from gridq.errors import (
    ChildDied,
    GraphError,
    GridError,
    InvalidField,
    SeatUnavailable,
    StageError,
    StageTimeout,
)
from gridq.graph.catalogue import StageSpec
from gridq.profiles.profile import Profile, StageContext
from gridq.protocol import budget_syntax, queue_names
from gridq.protocol.models import (
    Demand,
    Effect,
    Estimate,
    Json,
    Limit,
    ProbeReport,
    SeatOffer,
    StageCall,
    Usage,
)

__all__ = ["BenchCapability", "FakeProfile", "ProfileConformance"]

ANY = "any"


def _limits(seat: Mapping[str, Json]) -> tuple[Limit, ...]:
    """A bench seat's `budget` in dollars a month, and its `budgets`."""
    tables = list(seat.get("budgets", ()))
    if "budget" in seat:
        tables.insert(0, {"dollars": seat["budget"], "per": "month"})
    return budget_syntax.distinct(budget_syntax.stated(table, budget_syntax.SEAT_UNITS) for table in tables)


class BenchCapability(BaseModel):
    """A bench seat: the slugs it serves beside `any`."""

    model_config = ConfigDict(extra="forbid")

    slugs: list[str] = Field(default_factory=lambda: [ANY])


class FakeProfile(Profile):
    """A kind whose stages cost nothing and do exactly what they are told.

    Effects: `{"effect": "Bench", "slug": "any"}`, or a list of slugs, the best first. Implementations, each
    with its input:

    - `bench:echo` anything → the same
    - `bench:sleep` `{"ms": n}` → the input; ends at once when cancelled
    - `bench:fail` `{"message"?}` → StageError
    - `bench:seat_fail` `{"times": n, "key"?}` → SeatUnavailable n times in this process, then the input
    - `bench:tokens` `{"n", "ms"?}` → emits n pieces, `ms` apart, and returns them joined
    - `bench:spend` `{"micro_dollars"?, "tokens_in"?, "tokens_out"?}` → reports that usage, returns the input
    - `bench:die` anything → starts a child that dies: ChildDied

    `probe({"name"?, "concurrency"?, "slugs"?, "budget"?, "budgets"?, "requests_per_minute"?})`, or a list of such
    tables, offers by default one seat, `bench`, of two slots; a budget is dollars a month.
    """

    kind: ClassVar[str] = "bench"
    Capability: ClassVar[type[BaseModel]] = BenchCapability

    failed: ClassVar[Counter[str]] = Counter()
    """How often `bench:seat_fail` failed in this process, by key."""

    _lock: ClassVar[threading.Lock] = threading.Lock()

    def queues(self, capability: BaseModel) -> list[str]:
        assert isinstance(capability, BenchCapability)
        return list(
            dict.fromkeys(queue_names.capability(self.kind, name) for name in [*capability.slugs, ANY])
        )

    def demand(self, effect: Effect) -> Demand | None:
        if effect.effect != "Bench":
            return None
        told = effect.fields.get("slug", ANY)
        slugs = told if isinstance(told, list) else [told]
        if not slugs or not all(isinstance(slug, str) and slug for slug in slugs):
            raise InvalidField(
                "A Bench effect's slug is not a name",
                {"path": "effects.slug", "expected": "a string, or a list of them"},
            )
        first, *others = (
            Demand(queue=queue_names.capability(self.kind, slug), needs={"slug": slug}) for slug in slugs
        )
        return first.model_copy(update={"fallbacks": tuple(others)})

    def matches(self, demand: Demand, capability: BaseModel) -> bool:
        return demand.queue in self.queues(capability)

    def probe(self, config: Mapping[str, Json] | Sequence[Json]) -> ProbeReport:
        seats = [config] if isinstance(config, Mapping) else config
        return ProbeReport(
            found=[
                SeatOffer(
                    name=seat.get("name", self.kind),
                    kind=self.kind,
                    capability=BenchCapability(slugs=seat.get("slugs") or [ANY]).model_dump(),
                    concurrency=seat.get("concurrency", 2),
                    limits=_limits(seat),
                    requests_per_minute=seat.get("requests_per_minute"),
                    note="runs no model",
                )
                for seat in seats
            ]
        )

    def stages(self) -> list[dict[str, Json]]:
        """`bench_echo` and the others, each on `bench:any` or, with a `slug` in its config, on that."""
        common = {
            "input": {"kind": "Any"},
            "output": {"kind": "Any"},
            "effects": [{"effect": "Bench", "slug": {"$config": "slug", "default": ANY}}],
        }
        return [
            {"name": f"bench_{what}", "implementation": f"bench:{what}", **common}
            for what in ("echo", "sleep", "fail", "seat_fail", "tokens", "spend", "die")
        ]

    def estimate(self, stage: StageCall, value: Json) -> Estimate:
        """What `bench:spend` and `bench:tokens` are told to use."""
        told = value if isinstance(value, dict) else {}
        return Estimate(
            micro_dollars=_count(told, "micro_dollars"),
            tokens_in=_count(told, "tokens_in"),
            tokens_out=_count(told, "n") + _count(told, "tokens_out"),
        )

    def run(self, stage: StageCall, value: Json, context: StageContext) -> Json:
        context.check()
        told = value if isinstance(value, dict) else {}
        match stage.implementation:
            case "bench:echo":
                return value
            case "bench:sleep":
                self._wait(stage, context, _count(told, "ms"))
                return value
            case "bench:fail":
                raise StageError(str(told.get("message", "The stage was told to fail")), {"path": stage.path})
            case "bench:seat_fail":
                return self._blame_seat(stage, told, value)
            case "bench:tokens":
                return self._stream(stage, told, context)
            case "bench:spend":
                context.report(Usage(**{name: _count(told, name) for name in _SPENT}))
                return value
            case "bench:die":
                died = subprocess.run(
                    [sys.executable, "-I", "-S", "-c", "import os; os._exit(3)"], check=False
                )
                raise ChildDied(
                    f"The stage's child process ended with {died.returncode}", {"path": stage.path}
                )
        raise StageError(
            f"The bench profile has no implementation {stage.implementation!r}",
            {
                "path": stage.path,
                "expected": "bench:echo, sleep, fail, seat_fail, tokens, spend or die",
                "fix": "use 'bench:echo'",
            },
        )

    def _wait(self, stage: StageCall, context: StageContext, ms: int) -> None:
        seconds = ms / 1000
        left = seconds if context.deadline is None else context.deadline - time.monotonic()
        context.cancelled.wait(max(0.0, min(seconds, left)))
        context.check()
        if left < seconds:
            raise StageTimeout("The stage ran longer than its time limit", {"path": stage.path})

    def _blame_seat(self, stage: StageCall, told: Mapping[str, Json], value: Json) -> Json:
        key = str(told.get("key", stage.id))
        with self._lock:
            if self.failed[key] < _count(told, "times", 1):
                self.failed[key] += 1
                raise SeatUnavailable("The seat was told to fail", {"path": stage.path, "retry_after": 0})
        return value

    def _stream(self, stage: StageCall, told: Mapping[str, Json], context: StageContext) -> str:
        pieces = [f"token{i} " for i in range(_count(told, "n", 1))]
        for number, piece in enumerate(pieces, 1):
            self._wait(stage, context, _count(told, "ms"))
            context.emit(piece)
            context.report(Usage(tokens_out=number))
        return "".join(pieces)


_SPENT = ("micro_dollars", "tokens_in", "tokens_out")


def _count(told: Mapping[str, Json], name: str, default: int = 0) -> int:
    number = told.get(name, default)
    return number if isinstance(number, int) and number >= 0 else default


def _raised(act: Callable[[], object]) -> GridError | None:
    try:
        act()
    except GridError as error:
        return error
    return None


class ProfileConformance:
    """What every profile must do; subclass it in a pytest module and set its fields.

    `profile` is the class, `effects` pairs example effects with the queue each must need, `capabilities` are
    descriptors of seats as JSON, and `served` lists, for each of them, the effects (by index) it must serve.

        class TestMine(ProfileConformance):
            profile = MyProfile
            effects = (({"effect": "Mine", "size": 3}, "mine:3"),)
            capabilities = ({"size": 4},)
            served = ((0,),)
    """

    profile: type[Profile]
    effects: ClassVar[Sequence[tuple[dict[str, Any], str]]] = ()
    wrong_effects: ClassVar[Sequence[dict[str, Any]]] = ()
    capabilities: ClassVar[Sequence[dict[str, Any]]] = ()
    served: ClassVar[Sequence[Sequence[int]]] = ()
    probe_config: ClassVar[Mapping[str, Json] | Sequence[Json]] = MappingProxyType({})
    probe_seconds: ClassVar[float] = 2.0

    def test_kind_is_a_queue_prefix(self) -> None:
        queue_names.check(f"{self.profile.kind}:any")

    def test_constructed_without_arguments(self) -> None:
        assert self.profile().kind == self.profile.kind

    def test_demands(self) -> None:
        profile = self.profile()
        for fields, queue in self.effects:
            demand = profile.demand(Effect(**fields))
            assert demand is not None, fields
            assert demand.queue == queue
            queue_names.check(demand.queue)
            assert Demand.model_validate_json(demand.model_dump_json()) == demand

    def test_demand_is_a_function_of_the_effect(self) -> None:
        for fields, _ in self.effects:
            assert self.profile().demand(Effect(**fields)) == self.profile().demand(Effect(**fields))

    def test_a_foreign_effect_is_left_to_others(self) -> None:
        assert self.profile().demand(Effect(effect="NoSuchEffectAnywhere")) is None

    def test_a_wrong_effect_is_a_graph_error_with_a_fix(self) -> None:
        for fields in self.wrong_effects:
            error = _raised(lambda fields=fields: self.profile().demand(Effect(**fields)))  # type: ignore[misc]
            assert isinstance(error, GraphError), fields
            assert error.path or error.expected, fields

    def test_queues(self) -> None:
        profile = self.profile()
        for example in self.capabilities:
            served = profile.queues(profile.Capability.model_validate(example))
            assert served, example
            assert len(served) == len(set(served))
            for queue in served:
                queue_names.check(queue)

    def test_capabilities_survive_json(self) -> None:
        Capability = self.profile.Capability
        for example in self.capabilities:
            capability = Capability.model_validate(example)
            assert Capability.model_validate_json(capability.model_dump_json()) == capability

    def test_matching_agrees_with_queues(self) -> None:
        """A seat meets a demand exactly where it serves its queue, and the examples say which."""
        profile = self.profile()
        assert len(self.served) == len(self.capabilities)
        for example, wanted in zip(self.capabilities, self.served, strict=True):
            capability = profile.Capability.model_validate(example)
            names = profile.queues(capability)
            for index, (fields, queue) in enumerate(self.effects):
                demand = profile.demand(Effect(**fields))
                assert demand is not None
                assert profile.matches(demand, capability) == (index in wanted), (example, fields)
                if index in wanted:
                    assert queue in names, (example, fields)

    def test_its_stages_can_be_read_and_are_its_own(self) -> None:
        for example in self.profile().stages():
            spec = StageSpec.from_json(example)
            assert spec.implementation.startswith(f"{self.profile.kind}:"), spec.name

    def test_probe_is_quick_and_says_what_it_missed(self) -> None:
        profile = self.profile()
        began = time.monotonic()
        report = profile.probe(self.probe_config)
        took = time.monotonic() - began
        assert took < self.probe_seconds * 2, "a probe has two seconds (four allowed on a busy machine)"
        names = [offer.name for offer in report.found]
        assert len(names) == len(set(names)), "seat names are unique on a machine"
        for offer in report.found:
            capability = profile.Capability.model_validate(offer.capability)
            assert profile.queues(capability)
        assert report.found or report.missing, "nothing found and no reason given"
        assert all(sentence.strip() for sentence in report.missing)

    def test_unknown_implementation_is_the_stages_fault(self) -> None:
        profile = self.profile()
        call = StageCall(id="s", name="s", path="$", implementation=f"{profile.kind}:no_such_thing")
        error = _raised(lambda: profile.run(call, None, StageContext()))
        assert isinstance(error, StageError), "any other error is tried again elsewhere"
        assert error.expected or error.fix

    def test_metrics_and_health_do_not_block(self) -> None:
        profile = self.profile()
        assert all(isinstance(value, (int, float)) for value in profile.metrics().values())
        assert isinstance(profile.health(), str)

    def test_close_is_repeatable(self) -> None:
        profile = self.profile()
        profile.close()
        profile.close()
