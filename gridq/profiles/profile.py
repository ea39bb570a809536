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
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from inspect import isabstract
from pathlib import Path
from typing import ClassVar, cast

from pydantic import BaseModel

from gridq.errors import (
    CapabilityConflict,
    ConfigError,
    InvalidField,
    JobCancelled,
    SeatUnavailable,
    UnknownCapability,
)
from gridq.protocol.models import (
    Demand,
    Effect,
    Estimate,
    Json,
    ProbeReport,
    StageCall,
    Usage,
)
from gridq.protocol.queue_aliases import NO_ALIASES, QueueAliases

ENTRY_POINT_GROUP = "gridq.profiles"

CORE_EFFECTS = frozenset(
    {"Pure", "Network", "Fallible", "NonDeterministic", "Process", "Unknown", "Cost", "FsRead", "FsWrite"}
)
"""The effects that need no capability of any profile."""

MAX_DROPPED_FIELDS = 32
MAX_PLACE_CHARACTERS = 120


class StageContext:
    """The context of a running stage: its deadline and cancellation, and where its pieces and usage go.

    `attempt` counts the starts of the stage, this one included, so that another system can recognize a
    repeated call. `waited` is how many seconds the stage was ready before it was claimed. `deadline` is in
    seconds of `time.monotonic()`; it may move while pieces are sent.
    `emit_together`, if given, gets several pieces that are sent at once, instead of `emit` for each.
    `cancelled` is set when the result is no longer wanted; a runner checks it, or waits for it, at least once
    a second, and then calls `check`. `models_in_cooldown` are the models that should not be
    chosen now.
    """

    def __init__(
        self,
        *,
        job: str = "",
        agent: str = "",
        attempt: int = 1,
        waited: float = 0.0,
        deadline: float | None = None,
        emit: Callable[[Json], None] | None = None,
        emit_together: Callable[[Sequence[Json]], None] | None = None,
        models_in_cooldown: Collection[str] = (),
        on_model: Callable[[str], None] | None = None,
    ) -> None:
        self.job = job
        self.agent = agent
        """The agent whose job it is; empty if it is not known."""
        self.attempt = attempt
        self.waited = waited
        self.deadline = deadline
        self.cancelled = threading.Event()
        self.usage = Usage()
        self.models_in_cooldown = models_in_cooldown
        self.dropped_fields: list[str] = []
        """Places in the stage's input that have no effect on this seat, at most MAX_DROPPED_FIELDS."""
        self._emit = emit
        self._emit_together = emit_together
        self._on_model = on_model
        self._on_cancel: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    @property
    def is_streaming(self) -> bool:
        """True if the caller asked for pieces of the answer."""
        return self._emit is not None

    def emit(self, *pieces: Json) -> None:
        """Send one piece of the answer, or several together: JSON values; for a model, the new text."""
        if self._emit is None or self.cancelled.is_set():
            return
        if len(pieces) > 1 and self._emit_together is not None:
            self._emit_together(pieces)
        else:
            for piece in pieces:
                self._emit(piece)

    def report(self, usage: Usage) -> None:
        """Set what this attempt has used so far, at most MAX_USAGE of anything."""
        self.usage = usage.clamp()

    def drop_field(self, place: str) -> None:
        """Say that a part of the stage's input has no effect on this seat, such as `seed`.

        Whoever submitted the stage is told. Say it before the first piece of a stream.
        """
        place = place[:MAX_PLACE_CHARACTERS]
        if place not in self.dropped_fields and len(self.dropped_fields) < MAX_DROPPED_FIELDS:
            self.dropped_fields.append(place)

    def use_model(self, name: str) -> None:
        """Say which of the seat's models the stage is about to use. A ModelUnavailable or RequestRefused that
        `run` raises then blames this model alone. Raises ModelInCooldown if the model takes no work.
        """
        if self._on_model is not None:
            self._on_model(name)

    def on_cancel(self, act: Callable[[], None]) -> None:
        """Call `act` when the stage is cancelled, or now if it already is.

        Use it to kill a child or close a connection.
        """
        with self._lock:
            if not self.cancelled.is_set():
                self._on_cancel.append(act)
                return
        act()

    def cancel(self) -> None:
        """Set `cancelled` and call what was passed to `on_cancel`; a second call does nothing."""
        with self._lock:
            self.cancelled.set()
            acts, self._on_cancel = self._on_cancel, []
        for act in acts:
            act()

    def check(self) -> None:
        """Raise JobCancelled if the stage was cancelled."""
        if self.cancelled.is_set():
            raise JobCancelled("The stage was cancelled while it ran")


class Profile(ABC):
    """The base of every profile.

    Abstract methods are required. The other methods have defaults that fit most kinds.
    """

    kind: ClassVar[str]
    Capability: ClassVar[type[BaseModel]]
    runs_python: ClassVar[bool] = False
    """Whether `run` also runs Python stages (`python:…`) whose effects demand a queue of this kind."""

    metric_helps: ClassVar[Mapping[str, str]] = {}
    """The help text of each name that `metrics` returns, for Prometheus."""

    @abstractmethod
    def queues(self, capability: BaseModel) -> list[str]:
        """Return every queue that a seat with this capability serves, the most specific first."""

    @abstractmethod
    def demand(self, effect: Effect) -> Demand | None:
        """Return what `effect` needs, or None if another profile owns it.

        Raise GraphError if a field is invalid.
        """

    @abstractmethod
    def matches(self, demand: Demand, capability: BaseModel) -> bool:
        """Return whether a seat with `capability` meets `demand`; compare numbers as numbers."""

    def explain_mismatch(self, demand: Demand, capability: BaseModel) -> str:
        """Return in words what a seat lacks for `demand`; empty if it matches."""
        return "" if self.matches(demand, capability) else "it does not meet the demand"

    @abstractmethod
    def probe(self, config: Mapping[str, Json] | Sequence[Json]) -> ProbeReport:
        """Return the seats of this machine, within two seconds.

        `config` is the kind's part of the machine's seats file: its table (`[kind]`), the list of its tables
        (`[[kind]]`), or an empty table. Raise ConfigError if it is invalid.
        """

    @abstractmethod
    def run(self, stage: StageCall, value: Json, context: StageContext) -> Json:
        """Run `stage` on input `value` and return its output.

        Raise StageError if the stage itself is at fault, which ends it, and SeatError if this seat is at
        fault, so that the grid tries another one.
        """

    def stages(self) -> list[dict[str, Json]]:
        """Return the stages that come with the profile, in the form of stage files."""
        return []

    def open(self, capability: BaseModel, config: Mapping[str, Json]) -> None:  # noqa: B027 most have nothing to do
        """Prepare to run stages of this seat; called once in the seat's worker, before the first `run`."""

    def close(self) -> None:  # noqa: B027
        """Release what `open` and `run` hold: children, memory, connections. It may be called twice."""

    def estimate(self, stage: StageCall, value: Json) -> Estimate:
        """Return what running `stage` is expected to use."""
        return Estimate()

    def families(self, capability: BaseModel) -> Mapping[str, Sequence[str]]:
        """Return a seat's model families by queue, as budgets name them."""
        return {}

    def prices(self, capability: BaseModel) -> tuple[int, int] | None:
        """Return a seat's highest prices in micro-dollars per million tokens, in and out, or None."""
        return None

    def hourly_price(self, capability: BaseModel, config: Mapping[str, Json]) -> int | None:
        """Return the price of an hour of one slot in micro-dollars, None if its time is not counted; `config`
        is that of `open`.

        With any price, 0 included, `Usage.seconds` counts towards budgets in GPU seconds.
        """
        return None

    def keeps_prompts(self, config: Mapping[str, Json]) -> bool:
        """Return whether a seat keeps prompts, so that one it has seen takes less time; `config` is that of
        `open`.

        The turns of a conversation then go to the same seat, if it is free.
        """
        return False

    def exclude_models(self, capability: BaseModel, models: Collection[str]) -> BaseModel | None:
        """Return what a seat offers without `models`, as `StageContext.use_model` named them; None if
        nothing is left.

        The default fits a profile that names no models.
        """
        return capability

    def current_capability(self, capability: BaseModel) -> BaseModel:
        """Return what the open seat offers now, of which `capability` is what `open` got; must not block.

        Override it, and `watch_offer`, if the models of a seat come and go while its worker runs.
        """
        return capability

    def watch_offer(self, act: Callable[[], None]) -> None:  # noqa: B027 most offers stay as they are
        """Call `act` from now on, on any thread, when `current_capability` or `health` of the seat changes.

        Called once, before `open`.
        """

    def last_resort_queues(self, capability: BaseModel) -> Sequence[str]:
        """Return the queues that a seat serves only while no other seat of the grid does."""
        return ()

    def announcement_folder(self, home: Path) -> Path | None:
        """Return the folder below `home` whose files announce seats to the probe, or None if there is none.

        `gridq up` and `gridq worker` watch it: the seats come and go with their files.
        """
        return None

    def look_for_seats(self) -> Callable[[], bool] | None:
        """Return a function that returns whether this machine may have a new seat since its last call; None
        if all seats are announced, or found by the first probe.

        `gridq up` and `gridq worker` call it every minute, and probe again if it returns True. Keep it cheap.
        """
        return None

    def stamp_login(self) -> str:
        """Return a text that changes when the open seat's key or login is renewed, and contains no secret.

        It is read every half second while the seat or one of its models is in cooldown. If it changes, the
        cooldown ends.
        """
        return ""

    def load(self, model: str, context: StageContext) -> None:
        """Load a model of the open seat before a stage needs it, as an operator commands.

        Raise a SeatError if the seat does not have it or cannot load it.
        """
        raise SeatUnavailable("This seat loads no models", {"model": model})

    def unload(self, model: str) -> None:
        """Unload a model of the open seat, unless stages use it. Raise a SeatError if it stays loaded."""
        raise SeatUnavailable("This seat loads no models", {"model": model})

    def warm_queues(self) -> Sequence[str]:
        """Return the queues whose work starts soonest here, because their model is loaded; must not block."""
        return ()

    def pass_over_seconds(self) -> Mapping[str, float]:
        """Return queue → how many seconds its stages may be passed over for stages of `warm_queues`; must not
        block.

        Name only queues whose model would displace a loaded one, all with the same number: the time that
        several loads take. Stages of other queues may be passed over for two seconds.
        """
        return {}

    def watch_warm_queues(self, act: Callable[[], None]) -> None:  # noqa: B027 most have none
        """Call `act` from now on, on any thread, when `warm_queues` or `pass_over_seconds` change.

        Called once, before `open`. Without it, they are read each second.
        """

    def metrics(self) -> dict[str, float]:
        """Return the seat's metrics by their names (`gridq.profiles.metric_keys`); must not block.

        The gateways' `/metrics` show `api_calls_total` as `gridq_api_calls_total{seat="…"}`.
        """
        return {}

    def details(self) -> dict[str, Json]:
        """Return what is to be shown of the seat beyond its metrics, as JSON; must not block.

        It is part of each heartbeat, so keep it short. Everybody who may see the seats sees it.
        """
        return {}

    def health(self) -> str:
        """Return why the seat cannot work, or an empty text if it can; must not block.

        A profile that reports changes by `watch_offer` takes the seat out of work with it.
        """
        return ""


def list_installed() -> dict[str, EntryPoint]:
    """Return the entry point of every installed profile, by name."""
    return {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}


@cache
def load_profiles(names: tuple[str, ...]) -> dict[str, Profile]:
    """Return an instance of each profile in `names`, the value of `GRIDQ_PROFILES`, by its kind.

    A name is that of an installed profile (`llm`), or a class that can be imported (`my_pkg:MyProfile`).
    Raises ConfigError if a profile is not installed, cannot be imported or is not a Profile, and if two have
    the same kind.
    """
    loaded: dict[str, Profile] = {}
    for name in names:
        profile = _find_class(name)()
        if profile.kind in loaded:
            raise ConfigError(
                f"Two profiles have the kind {profile.kind!r}",
                {"path": "GRIDQ_PROFILES", "fix": f"remove {name!r} or the other profile of that kind"},
            )
        loaded[profile.kind] = profile
    return loaded


def _find_class(name: str) -> type[Profile]:
    if ":" in name:
        return _import_class(name)
    points = list_installed()
    if name in points:
        return cast("type[Profile]", points[name].load())
    near = difflib.get_close_matches(name, points, 1)
    raise ConfigError(
        f"No profile {name!r} is installed",
        {
            "path": "GRIDQ_PROFILES",
            "expected": "one of " + ", ".join(sorted(points)) + ", or a class as module:Class",
            "fix": f"use {near[0]!r}" if near else "install the package that has it, or leave it out",
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


def check_effect_fields(effect: Effect, known: Collection[str]) -> None:
    """Raise InvalidField if an effect has a field that its profile does not know, such as a misspelt one."""
    name = next((each for each in effect.model_extra or () if each not in known), None)
    if name is None:
        return
    near = difflib.get_close_matches(name.lower(), known, 1)
    raise InvalidField(
        f"The effect {effect.effect!r} has no field {name!r}",
        {
            "path": f"effects.{name}",
            "expected": ", ".join(known),
            "fix": f"use {near[0]!r}" if near else "remove it",
        },
    )


def find_demand(
    effects: list[Effect],
    profiles: Mapping[str, Profile],
    path: str = "",
    aliases: QueueAliases = NO_ALIASES,
) -> Demand | None:
    """Return the demand of a stage with `effects`, or None if it needs no capability of a profile.

    Its fall-backs include what its queues stand for by `aliases`.

    Raises UnknownCapability for an effect that no profile knows, InvalidField for a wrong field of one, and
    CapabilityConflict if the effects demand more than one queue. `path` is the place of the stage.
    """
    demands: dict[str, Demand] = {}  # by all queues of their alternatives
    for effect in effects:
        if effect.effect in CORE_EFFECTS:
            continue
        for profile in profiles.values():
            try:
                demand = profile.demand(effect)
            except InvalidField as error:
                error.details["path"] = ".".join(filter(None, (path, error.path)))
                raise
            if demand is not None:
                demand = aliases.expand(demand)
                demands[", else ".join(link.queue for link in demand.alternatives)] = demand
                break
        else:
            near = difflib.get_close_matches(effect.effect, CORE_EFFECTS, 1)
            raise UnknownCapability(
                f"No enabled profile knows the effect {effect.effect!r}",
                {
                    "path": path,
                    "expected": "an effect of the core or of an enabled profile: "
                    + (", ".join(sorted(profiles)) or "none"),
                    "fix": f"use {near[0]!r}" if near else "add the profile that owns it to GRIDQ_PROFILES",
                },
            )
    if len(demands) > 1:
        raise CapabilityConflict(
            "The stage needs " + " and ".join(sorted(demands)) + " at once",
            {"path": path, "expected": "one capability per stage", "fix": "split the stage"},
        )
    return next(iter(demands.values()), None)
