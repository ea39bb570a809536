"""A profile without a model, for tests and benchmarks.

Its kind is `bench`. Its seats serve `bench:any` and the slugs they are given, and its stages do what their
name says: echo, sleep, fail, blame the seat, stream, spend, or kill their own child.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field

from gridq.errors import ChildDied, InvalidField, SeatUnavailable, StageError, StageTimeout
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

BENCH = "tests.fakes.bench_profile:BenchProfile"
"""The profile's name in `GRIDQ_PROFILES`."""

ANY = "any"


def _parse_limits(seat: Mapping[str, Json]) -> tuple[Limit, ...]:
    """Return the limits of a bench seat: its `budget` in dollars a month, and its `budgets`."""
    tables = list(seat.get("budgets", ()))
    if "budget" in seat:
        tables.insert(0, {"dollars": seat["budget"], "per": "month"})
    return budget_syntax.check_distinct(
        budget_syntax.parse_limit(table, budget_syntax.SEAT_UNITS) for table in tables
    )


class BenchCapability(BaseModel):
    """A bench seat: the slugs it serves beside `any`."""

    model_config = ConfigDict(extra="forbid")

    slugs: list[str] = Field(default_factory=lambda: [ANY])


class BenchProfile(Profile):
    """A kind whose stages cost nothing and do exactly what their input says.

    Effects: `{"effect": "Bench", "slug": "any"}`, or a list of slugs, the best first. Implementations, each
    with its input:

    - `bench:echo` anything → the same
    - `bench:sleep` `{"ms": n}` → the input; ends at once when cancelled
    - `bench:fail` `{"message"?}` → StageError
    - `bench:seat_fail` `{"times": n, "key"?}` → SeatUnavailable n times in this process, then the input
    - `bench:tokens` `{"n", "ms"?}` → emits n pieces, `ms` apart, and returns them joined
    - `bench:spend` `{"micro_dollars"?, "tokens_in"?, "tokens_out"?}` → reports that usage, returns the input
    - `bench:die` anything → starts a child that dies: ChildDied

    `probe({"name"?, "concurrency"?, "slugs"?, "budget"?, "budgets"?, "requests_per_minute"?})`, or a list of
    such tables, offers by default one seat, `bench`, with two slots. A budget is in dollars a month.
    """

    kind: ClassVar[str] = "bench"
    Capability: ClassVar[type[BaseModel]] = BenchCapability

    failed: ClassVar[Counter[str]] = Counter()
    """The number of failures of `bench:seat_fail` in this process, by key."""

    _lock: ClassVar[threading.Lock] = threading.Lock()

    def queues(self, capability: BaseModel) -> list[str]:
        assert isinstance(capability, BenchCapability)
        return list(
            dict.fromkeys(queue_names.make_queue_name(self.kind, name) for name in [*capability.slugs, ANY])
        )

    def demand(self, effect: Effect) -> Demand | None:
        if effect.effect != "Bench":
            return None
        slug = effect.fields.get("slug", ANY)
        slugs = slug if isinstance(slug, list) else [slug]
        if not slugs or not all(isinstance(slug, str) and slug for slug in slugs):
            raise InvalidField(
                "A Bench effect's slug is not a name",
                {"path": "effects.slug", "expected": "a string, or a list of them"},
            )
        first, *others = (
            Demand(queue=queue_names.make_queue_name(self.kind, slug), needs={"slug": slug}) for slug in slugs
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
                    limits=_parse_limits(seat),
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
        """Return what `bench:spend` and `bench:tokens` will use."""
        request = value if isinstance(value, dict) else {}
        return Estimate(
            micro_dollars=_count(request, "micro_dollars"),
            tokens_in=_count(request, "tokens_in"),
            tokens_out=_count(request, "n") + _count(request, "tokens_out"),
        )

    def run(self, stage: StageCall, value: Json, context: StageContext) -> Json:
        context.check()
        request = value if isinstance(value, dict) else {}
        match stage.implementation:
            case "bench:echo":
                return value
            case "bench:sleep":
                self._wait(stage, context, _count(request, "ms"))
                return value
            case "bench:fail":
                raise StageError(
                    str(request.get("message", "The stage was asked to fail")), {"path": stage.path}
                )
            case "bench:seat_fail":
                return self._blame_seat(stage, request, value)
            case "bench:tokens":
                return self._stream(stage, request, context)
            case "bench:spend":
                context.report(Usage(**{name: _count(request, name) for name in _SPENT}))
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

    def _blame_seat(self, stage: StageCall, request: Mapping[str, Json], value: Json) -> Json:
        key = str(request.get("key", stage.id))
        with self._lock:
            if self.failed[key] < _count(request, "times", 1):
                self.failed[key] += 1
                raise SeatUnavailable("The seat was asked to fail", {"path": stage.path, "retry_after": 0})
        return value

    def _stream(self, stage: StageCall, request: Mapping[str, Json], context: StageContext) -> str:
        pieces = [f"token{i} " for i in range(_count(request, "n", 1))]
        for number, piece in enumerate(pieces, 1):
            self._wait(stage, context, _count(request, "ms"))
            context.emit(piece)
            context.report(Usage(tokens_out=number))
        return "".join(pieces)


_SPENT = ("micro_dollars", "tokens_in", "tokens_out")


def _count(request: Mapping[str, Json], name: str, default: int = 0) -> int:
    number = request.get(name, default)
    return number if isinstance(number, int) and number >= 0 else default
