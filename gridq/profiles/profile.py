"""The plug-in seam: a profile owns one kind of capability, and the core knows none of them.

An operator enables profiles in `GRIDQ_PROFILES`, by the name under which a package installed them (entry
point group `gridq.profiles`) or by their class (`module:Class`). The core asks a profile which queue an
effect needs (`demand`), which queues a seat serves (`queues`), what this machine has (`probe`), and to run a
stage (`run`). Authors test their profile with `gridq.profiles.conformance`.
"""

from __future__ import annotations

import difflib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from inspect import isabstract
from typing import ClassVar, cast

from pydantic import BaseModel

from gridq.errors import CapabilityConflict, ConfigError, JobCancelled, UnknownCapability
from gridq.protocol.models import Demand, Effect, Estimate, Json, ProbeReport, StageCall, Usage

ENTRY_POINT_GROUP = "gridq.profiles"

CORE_EFFECTS = frozenset(
    {"Pure", "Network", "Fallible", "NonDeterministic", "Process", "Unknown", "Cost", "FsRead", "FsWrite"}
)
"""The effects that need no capability of any profile."""


class StageContext:
    """What a running stage may use: where its tokens go, when it must stop, what it reports.

    `attempt` counts how often the stage was begun, this time included: an outside system can tell a repeated
    call by it. `deadline` is in seconds of `time.monotonic()`. `emit` takes a piece of the answer as it is
    made. `cancelled` is set when the result is no longer wanted: a runner looks at it (or waits on it) at
    least each second and then calls `check`.
    """

    def __init__(
        self,
        *,
        job: str = "",
        attempt: int = 1,
        deadline: float | None = None,
        emit: Callable[[Json], None] | None = None,
    ) -> None:
        self.job = job
        self.attempt = attempt
        self.deadline = deadline
        self.cancelled = threading.Event()
        self.usage = Usage()
        self._emit = emit
        self._on_cancel: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    @property
    def streaming(self) -> bool:
        """Whether somebody asked for the pieces."""
        return self._emit is not None

    def emit(self, piece: Json) -> None:
        """Hand over one piece of the answer (a JSON value, for a model its text so far unseen)."""
        if self._emit is not None and not self.cancelled.is_set():
            self._emit(piece)

    def report(self, usage: Usage) -> None:
        """Replace what this attempt has used so far; of no thing more than `protocol.MAX_USAGE` counts."""
        self.usage = usage.clamp()

    def on_cancel(self, act: Callable[[], None]) -> None:
        """Call `act` when the stage is cancelled (at once where it already is): kill a child, close a
        connection.
        """
        with self._lock:
            if not self.cancelled.is_set():
                self._on_cancel.append(act)
                return
        act()

    def cancel(self) -> None:
        """Set `cancelled` and call what `on_cancel` was given; harmless where it was cancelled before."""
        with self._lock:
            self.cancelled.set()
            acts, self._on_cancel = self._on_cancel, []
        for act in acts:
            act()

    def check(self) -> None:
        """Raise JobCancelled where the stage was cancelled."""
        if self.cancelled.is_set():
            raise JobCancelled("The stage was cancelled while it ran")


class Profile(ABC):
    """The base of every profile. Methods without a body here have a default that fits most kinds."""

    kind: ClassVar[str]
    Capability: ClassVar[type[BaseModel]]

    @abstractmethod
    def queues(self, capability: BaseModel) -> list[str]:
        """Every queue that a seat with this capability serves, its exact one first."""

    @abstractmethod
    def demand(self, effect: Effect) -> Demand | None:
        """What `effect` needs, or None where it is not this profile's. A wrong field raises GraphError."""

    @abstractmethod
    def matches(self, demand: Demand, capability: BaseModel) -> bool:
        """Whether a seat with `capability` meets `demand`; numbers are compared as numbers."""

    def explain_mismatch(self, demand: Demand, capability: BaseModel) -> str:
        """In words what a seat lacks for `demand`; empty where `matches` holds."""
        return "" if self.matches(demand, capability) else "it does not meet the demand"

    @abstractmethod
    def probe(self, config: Mapping[str, Json] | Sequence[Json]) -> ProbeReport:
        """What this machine has, within two seconds.

        `config` is what the machine's seats file has for the kind: its table (`[kind]`), the list of its
        tables (`[[kind]]`), or an empty table. ConfigError: it is wrong.
        """

    @abstractmethod
    def run(self, stage: StageCall, value: Json, context: StageContext) -> Json:
        """Run `stage` on input `value` and return its output.

        StageError: the stage's own fault, not tried again. SeatError: this seat's fault, tried elsewhere.
        """

    def stages(self) -> list[dict[str, Json]]:
        """Stages that come with the profile, as stage files state them."""
        return []

    def open(self, capability: BaseModel, config: Mapping[str, Json]) -> None:  # noqa: B027 most have nothing to do
        """Make ready to run on this seat: called once, in the seat's own worker, before the first `run`."""

    def close(self) -> None:  # noqa: B027
        """Give back what `open` and `run` took: children, memory, connections."""

    def estimate(self, stage: StageCall, value: Json) -> Estimate:
        """What running `stage` will use, as far as is known before."""
        return Estimate()

    def account(self, usage: Usage) -> Usage:
        """The usage with this kind's prices applied."""
        return usage

    def families(self, capability: BaseModel) -> Mapping[str, Sequence[str]]:
        """Of what a seat runs for one of its queues, the families, as the operator's budgets name them; a
        queue that is missing has none.
        """
        return {}

    def prices(self, capability: BaseModel) -> tuple[int, int] | None:
        """The dearest prices of a seat: micro-dollars a million tokens, in and out. None: it has none."""
        return None

    def hourly_price(self, capability: BaseModel, config: Mapping[str, Json]) -> int | None:
        """What an hour of one slot of a seat costs, in micro-dollars; `config` as `open` is given it. None:
        its time has no price.
        """
        return None

    def warm_queues(self) -> Sequence[str]:
        """The queues whose work starts soonest here, as their model is loaded; must not block."""
        return ()

    def metrics(self) -> dict[str, float]:
        """Numbers for the seat's advertisement; must not block."""
        return {}

    def health(self) -> str:
        """Empty where the seat can work, else why not; must not block."""
        return ""


def list_installed() -> dict[str, EntryPoint]:
    """Every installed profile's entry point, by name."""
    return {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}


@cache
def load_profiles(names: tuple[str, ...]) -> dict[str, Profile]:
    """Return an instance of each profile in `names`, the value of `GRIDQ_PROFILES`, by its kind.

    A name is that of an installed profile (`llm`), or a class that can be imported (`my_pkg:MyProfile`).
    Raises ConfigError if a profile is not installed, cannot be imported or is no Profile, and if two of them
    have the same kind.
    """
    loaded: dict[str, Profile] = {}
    for name in names:
        profile = _profile_class(name)()
        if profile.kind in loaded:
            raise ConfigError(
                f"Two profiles have the kind {profile.kind!r}",
                {"path": "GRIDQ_PROFILES", "fix": f"remove {name!r} or the other profile of that kind"},
            )
        loaded[profile.kind] = profile
    return loaded


def _profile_class(name: str) -> type[Profile]:
    if ":" in name:
        return _import_class(name)
    points = list_installed()
    if name in points:
        return cast("type[Profile]", points[name].load())
    near = difflib.get_close_matches(name, points, 1, 0.0)
    raise ConfigError(
        f"No profile {name!r} is installed",
        {
            "path": "GRIDQ_PROFILES",
            "expected": "one of " + ", ".join(sorted(points)) + ", or a class as module:Class",
            "fix": f"use {near[0]!r}" if near else "install a package that provides it",
        },
    )


def _import_class(reference: str) -> type[Profile]:
    """Import the class that `reference` (`module:Class`) names."""
    module, _, name = reference.partition(":")
    try:
        found = getattr(import_module(module), name)
    except (Exception, SystemExit) as exc:  # a module may raise anything while it is imported
        reason = f"{type(exc).__name__}: {exc}"
        raise ConfigError(
            f"The profile {reference!r} cannot be imported: {reason}",
            {
                "path": "GRIDQ_PROFILES",
                "expected": "module:Class, such as my_pkg.profile:MyProfile",
                "reason": reason,
                "fix": "correct the name, install the package, or add its folder to PYTHONPATH",
            },
        ) from None
    if not (isinstance(found, type) and issubclass(found, Profile)) or isabstract(found):
        raise ConfigError(
            f"{reference!r} is not a profile",
            {
                "path": "GRIDQ_PROFILES",
                "expected": "a subclass of gridq.Profile that defines its abstract methods",
                "fix": "name such a class",
            },
        )
    return found


def find_demand(effects: list[Effect], profiles: Mapping[str, Profile], path: str = "") -> Demand | None:
    """The one demand of a stage with `effects`, or None where it needs no capability of a profile.

    UnknownCapability: an effect that no profile knows. CapabilityConflict: effects of two kinds, or two
    queues of one.
    """
    demands: dict[str, Demand] = {}  # a chain by all of its queues
    for effect in effects:
        if effect.effect in CORE_EFFECTS:
            continue
        for profile in profiles.values():
            demand = profile.demand(effect)
            if demand is not None:
                demands[", else ".join(link.queue for link in demand.alternatives)] = demand
                break
        else:
            raise UnknownCapability(
                f"No enabled profile knows the effect {effect.effect!r}",
                {
                    "path": path,
                    "expected": "an effect of the core, or of a profile among "
                    + (", ".join(sorted(profiles)) or "none"),
                    "fix": "add the profile that owns it to GRIDQ_PROFILES",
                },
            )
    if len(demands) > 1:
        raise CapabilityConflict(
            "The stage needs " + " and ".join(sorted(demands)) + " at once",
            {"path": path, "expected": "one capability a stage", "fix": "split the stage in two"},
        )
    return next(iter(demands.values()), None)
