"""Decide which models of a seat are loaded: on demand, in the order of a line, and unloaded again.

- A request whose model is loaded uses it at once. If a request of another model waits for room before it, it
  passes only for a bounded time, that of several loads: so models that alternate share the device in runs,
  and none starves. The claim keeps the same order among stages that wait in the grid
  (`Profile.pass_over_seconds`).
- A model that is not loaded gets room by unloading idle models, those first that would be missed least:
  seconds of a reload, times recent uses. A model in use or loading is never unloaded.
- A model that nobody has used for `idle_seconds` is unloaded.
- A Python stage that needs memory of its own waits for it in the same line.
- A load belongs to the seat: a client that leaves does not end it, and all who wait for the model attach to
  it.
"""

from __future__ import annotations

import collections
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Protocol

from gridq.errors import GridError, SeatMemoryShort, SeatUnavailable, StageTimeout
from gridq.profiles.profile import StageContext
from workers.model_apis.model_catalogue import Model
from workers.profiles.gpu.capability import IDLE_UNLOAD_SECONDS
from workers.profiles.gpu.memory.device_book import Refusal
from workers.profiles.gpu.model_process import ModelProcess

POLL_SECONDS = 0.2
"""Interval at which a stage that waits for a model checks for its cancellation."""

PATIENCE_FACTOR = 10.0
"""A request that waits for room lets others pass for this many times the seconds of a load. So loads take at
most an eleventh of the time, if the loaded models have work all along.
"""

MIN_PATIENCE_SECONDS, MAX_PATIENCE_SECONDS = 2.0, 60.0
DEFAULT_LOAD_SECONDS = 3.0
"""Assumed for models that were never loaded here."""

MIN_DEMAND = 0.5
"""The demand of a model that is still in use: it was asked for within the half-life."""

MIN_GAP_SECONDS, GAP_SHARE = 0.05, 0.1
"""A model that was used so lately may be between two stages of the same line: within the larger of these
seconds and this share of a load. It is not unloaded yet, unless somebody has lost patience.
"""

DEMAND_HALF_LIFE_SECONDS = 300.0
IDLE_CHECKS = 10
MAX_IDLE_CHECK_SECONDS = 5.0

Cause = Literal["room", "idle", "command"]
"""Why a model was unloaded: another needed its memory, nobody used it, or the operator said so."""


class Holding(Protocol):
    """The memory that a load has reserved."""

    @property
    def mb(self) -> int: ...

    def release(self) -> None: ...


class Loader(Protocol):
    """What loads and unloads models: `model_loader.ModelLoader`."""

    def reserve(self, model: Model) -> Holding | Refusal: ...

    def load(self, model: Model, hold: Any, context: StageContext) -> ModelProcess: ...

    def unload(self, process: ModelProcess, hold: Any) -> None: ...

    def get_load_seconds(self, name: str) -> float | None: ...

    def make_short_error(self, model: Model, refusal: Refusal) -> SeatMemoryShort: ...


class Demand:
    """How much a model was used lately: each use counts 1, and half as much after each half-life."""

    def __init__(self) -> None:
        self._value = 0.0
        self._at = time.monotonic()

    def add(self) -> None:
        self._value, self._at = self.get() + 1.0, time.monotonic()

    def get(self) -> float:
        return float(self._value * 0.5 ** ((time.monotonic() - self._at) / DEMAND_HALF_LIFE_SECONDS))


@dataclass(eq=False)
class LoadedModel:
    """A loaded model: its process and memory, the number of stages that use it, when it was last used (of the
    monotonic clock; at first, when it was loaded), and by which agent. `is_used`: a stage has used it.
    """

    model: Model
    process: ModelProcess
    hold: Holding
    users: int = 0
    used_at: float = field(default_factory=time.monotonic)
    agent: str = ""
    is_used: bool = False


@dataclass(frozen=True)
class Room:
    """Memory for something other than a model, such as a Python stage. `name` is unique."""

    name: str


@dataclass(eq=False)
class LoadJob:
    """A load under way, to which all requests for its model attach; or a reservation of other memory.
    `began_at` is None while it waits for room. `reserve` makes one try, and `make_error` says that it is in
    vain. `victims` are the models that make room for it next, whoever asks for them; empty while those who
    wait for it still let others pass.
    """

    model: Model | Room
    reserve: Callable[[], Holding | Refusal]
    make_error: Callable[[Refusal], SeatMemoryShort]
    context: StageContext = field(default_factory=StageContext)
    waiters: int = 0
    began_at: float | None = None
    victims: frozenset[str] = frozenset()
    error: GridError | None = None
    is_over: bool = False


@dataclass(eq=False)
class Ticket:
    """A place in the line. `ready_at`: since when the request waits, also before it came to this seat."""

    model: Model | Room
    ready_at: float


class LoadedModels:
    """The models of a seat that are loaded or loading. `on_change` is called when `list_warm` or
    `list_crowded` may have changed.
    """

    def __init__(
        self,
        loader: Loader,
        idle_seconds: float = IDLE_UNLOAD_SECONDS,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._loader = loader
        self._on_change = on_change
        self._idle_seconds = idle_seconds
        self._changed = threading.Condition()
        self._loaded: dict[str, LoadedModel] = {}
        self._job: LoadJob | None = None
        self._line: collections.deque[Ticket] = collections.deque()
        self._demands: dict[str, Demand] = collections.defaultdict(Demand)
        self._crowded: set[str] = set()
        self._settled_at = 0.0  # when a load last ended: a run of the loaded models begins
        self._is_closed = False
        self.loads = 0
        self.load_seconds = 0.0
        """The sum of all loads."""
        self.use_seconds = 0.0
        """The sum of all uses; two at once count twice."""
        self.unloads: collections.Counter[Cause] = collections.Counter()
        if idle_seconds:
            threading.Thread(target=self._unload_idle, name="gridq-idle-models", daemon=True).start()

    @contextmanager
    def use(self, model: Model, context: StageContext) -> Iterator[ModelProcess]:
        """Load `model` if needed and keep it during the block. Yields its process.

        Raises SeatMemoryShort if it does not fit beside what others use, SeatUnavailable if the seat closes,
        the errors of the load, and JobCancelled or StageTimeout.
        """
        loaded = self._acquire(model, context)
        began_at = loaded.used_at = time.monotonic()
        loaded.agent, loaded.is_used = context.agent, True
        try:
            yield loaded.process
        finally:
            self._release(loaded, time.monotonic() - began_at)

    def load(self, model: Model, context: StageContext) -> None:
        """Load `model` if it is not loaded. Raises what `use` does."""
        self._release(self._acquire(model, context))

    def reserve_room(
        self,
        name: str,
        reserve: Callable[[], Holding | Refusal],
        make_error: Callable[[Refusal], SeatMemoryShort],
        context: StageContext,
    ) -> Holding:
        """Reserve memory by `reserve` for the stage `name`, in its turn, unloading idle models until it fits.

        Raises what `make_error` returns if it does not fit beside what others use, SeatUnavailable if the
        seat closes, and JobCancelled or StageTimeout.
        """
        room = Room(f"{name} {secrets.token_hex(4)}")
        job = LoadJob(room, reserve, make_error, context, waiters=1)
        ticket = Ticket(room, time.monotonic() - context.waited)
        with self._changed:
            self._line.append(ticket)
        try:
            with self._changed:
                while self._job is not None or self._find_first() is not ticket:
                    if self._is_closed:
                        raise make_closing_error()
                    self._changed.wait(POLL_SECONDS)
                    check_time(context, name)
                self._job = job
            return self._make_room(job)
        finally:
            with self._changed:
                self._line.remove(ticket)
                if self._job is job:
                    self._job = None
                self._changed.notify_all()

    def release_room(self, hold: Holding) -> None:
        """Give memory of `reserve_room` back."""
        hold.release()
        with self._changed:
            self._changed.notify_all()

    def _release(self, loaded: LoadedModel, seconds: float = 0.0) -> None:
        with self._changed:
            loaded.users -= 1
            loaded.used_at = time.monotonic()
            self.use_seconds += seconds
            self._changed.notify_all()

    def unload(self, name: str) -> bool:
        """Unload a model if it is idle. Return False if it is in use."""
        with self._changed:
            loaded = self._loaded.get(name)
            if loaded is None:
                return True
            if loaded.users:
                return False
            del self._loaded[name]
        self._end(loaded, "command")
        return True

    def list_names(self) -> list[str]:
        """Return the loaded models. Takes no lock: a heartbeat must not wait for a process to end."""
        return [name for name, loaded in list(self._loaded.items()) if loaded.process.is_alive]

    def list_warm(self) -> list[str]:
        """Return the models whose requests wait least here: those that are loaded and stay, and the one that
        is loading or is about to. Takes no lock.
        """
        job = self._job
        if job is None or job.is_over or (job.began_at is None and not job.victims):
            return self.list_names()
        return [*(name for name in self.list_names() if name not in job.victims), job.model.name]

    def list_crowded(self) -> list[str]:
        """Return the models that are not warm, and had no room beside the loaded ones when last asked for."""
        warm = self.list_warm()
        return [name for name in list(self._crowded) if name not in warm]

    def get_patience(self) -> float:
        """Return for how many seconds requests for loaded models go before those for others.

        It follows from the longest load of the models that are in use, and is the same for all of them:
        else those with short loads could take turns for ever, and one with a long load would starve.
        """
        seconds = PATIENCE_FACTOR * self._get_longest_load()
        return min(MAX_PATIENCE_SECONDS, max(MIN_PATIENCE_SECONDS, seconds))

    def _get_longest_load(self) -> float:
        """Return the seconds of the longest load of the models that are in use."""
        wanted = [name for name, demand in list(self._demands.items()) if demand.get() >= MIN_DEMAND]
        loads = [seconds for name in wanted if (seconds := self._loader.get_load_seconds(name))]
        return max(loads, default=DEFAULT_LOAD_SECONDS)

    def list_loaded(self) -> list[LoadedModel]:
        """Return the loaded models, without a lock, as `list_names`."""
        return [loaded for loaded in list(self._loaded.values()) if loaded.process.is_alive]

    def list_processes(self) -> list[ModelProcess]:
        return [loaded.process for loaded in list(self._loaded.values())]

    def list_loading(self) -> dict[str, float | None]:
        """Return the model that is loading, with its share done, 0 to 1; None if that is not known.

        The share is that of the time of the model's last load on this device.
        """
        job = self._job
        if job is None or job.is_over or isinstance(job.model, Room):
            return {}
        expected = self._loader.get_load_seconds(job.model.name)
        if job.began_at is None or not expected:
            return {job.model.name: None}
        return {job.model.name: min(0.99, (time.monotonic() - job.began_at) / expected)}

    def close(self) -> None:
        """End every process, the loads, and the waits for one."""
        with self._changed:
            self._is_closed = True
            models, self._loaded = list(self._loaded.values()), {}
            job = self._job
            self._changed.notify_all()
        if job is not None and not isinstance(job.model, Room):
            job.context.cancel()
        for loaded in models:
            self._loader.unload(loaded.process, loaded.hold)
        with self._changed:
            self._changed.wait_for(lambda: self._job is None, 10)

    # -- the line

    def _acquire(self, model: Model, context: StageContext) -> LoadedModel:
        ticket = Ticket(model, time.monotonic() - context.waited)
        job: LoadJob | None = None
        with self._changed:
            self._demands[model.name].add()
            self._line.append(ticket)
            try:
                while True:
                    if self._is_closed:
                        raise make_closing_error()
                    if job is not None and job.error is not None:
                        raise copy_error(job.error)
                    self._forget_dead()
                    loaded = self._loaded.get(model.name)
                    if loaded is not None and self._may_pass(ticket):
                        loaded.users += 1
                        return loaded
                    if loaded is None and job is None:
                        job = self._attach(ticket)
                    elif job is not None and job.is_over and job.error is None and loaded is None:
                        job.waiters -= 1
                        job = None  # it was loaded, and died or was unloaded since
                    self._changed.wait(POLL_SECONDS)
                    check_time(context, model.name)
            finally:
                if job is not None:
                    job.waiters -= 1
                self._line.remove(ticket)
                self._changed.notify_all()

    def _may_pass(self, ticket: Ticket) -> bool:
        """Return whether a request for a loaded model may go before those that wait for room."""
        job = self._job
        if job is None or job.began_at is not None:
            return True  # nobody waits for memory that this request keeps in use
        return not self._has_lost_patience(job, before=ticket)

    def _has_lost_patience(self, job: LoadJob, before: Ticket | None = None) -> bool:
        """Return whether a request of the job's model, ahead of another, has let others pass long enough:
        since it waits, and since the last load.
        """
        since = time.monotonic() - self.get_patience()
        for each in self._line:
            if each is before:
                return False
            if each.model.name == job.model.name and max(each.ready_at, self._settled_at) < since:
                return True
        return False

    def _attach(self, ticket: Ticket) -> LoadJob | None:
        """Return the load of the ticket's model, begun now if it is its turn; None if another model loads."""
        job = self._job
        if job is None:
            first, model = self._find_first(), ticket.model
            if first is None or first.model.name != model.name or isinstance(model, Room):
                return None
            job = self._job = LoadJob(
                model,
                partial(self._loader.reserve, model),
                partial(self._loader.make_short_error, model),
            )
            name = f"gridq-load-{ticket.model.name}"
            threading.Thread(target=self._run_load, args=(job,), name=name, daemon=True).start()
        if job.model.name != ticket.model.name or job.is_over:
            return None
        job.waiters += 1
        return job

    def _find_first(self) -> Ticket | None:
        """Return the first in the line whose model is not loaded."""
        return next((each for each in self._line if each.model.name not in self._loaded), None)

    # -- loads, each on a thread of its own

    def _run_load(self, job: LoadJob) -> None:
        loaded: LoadedModel | None = None
        error: GridError | None = None
        try:
            loaded = self._load(job)
        except GridError as exc:
            error = exc
        except Exception as exc:  # whoever waits must get any fault of a load
            error = SeatUnavailable("The model cannot be loaded", {"reason": f"{type(exc).__name__}: {exc}"})
        with self._changed:
            job.error, job.is_over = error, True
            if loaded is not None and not self._is_closed:
                self.loads += 1
                self._loaded[job.model.name] = loaded
                self._settled_at = time.monotonic()
                loaded = None
            self._job = None
            self._changed.notify_all()
        self._on_change()
        if loaded is not None:
            self._loader.unload(loaded.process, loaded.hold)

    def _load(self, job: LoadJob) -> LoadedModel:
        """Make room and load; once more, after unloading all idle models, if memory runs out meanwhile."""
        assert isinstance(job.model, Model)
        for is_last in (False, True):
            hold = self._make_room(job)
            began_at = job.began_at = time.monotonic()
            self._on_change()
            try:
                process = self._loader.load(job.model, hold, job.context)
            except SeatMemoryShort:
                hold.release()
                if is_last or not self._unload_all_idle():
                    raise
            except BaseException:
                hold.release()
                raise
            else:
                self.load_seconds += time.monotonic() - began_at
                return LoadedModel(job.model, process, hold)
        raise AssertionError  # the last try returns or raises

    def _make_room(self, job: LoadJob) -> Holding:
        """Reserve the model's memory, unloading idle models until it fits.

        Raises SeatMemoryShort if nothing that this seat can unload would make enough room.
        """
        has_room = True
        while True:
            hold = job.reserve()
            if not isinstance(hold, Refusal):
                if has_room:
                    self._crowded.discard(job.model.name)
                if not self._is_closed:
                    return hold
                hold.release()
            has_room = False
            if isinstance(job.model, Model):
                self._crowded.add(job.model.name)
            with self._changed:
                if self._is_closed or not isinstance(hold, Refusal):
                    raise make_closing_error()
                check_time(job.context, job.model.name)
                if not job.waiters:
                    job.is_over = True  # a request that comes from here on begins another load
                    raise SeatUnavailable("No request waits for the model any more", {"retry_after": 0})
                idle = sorted((each for each in self._loaded.values() if not each.users), key=self._get_value)
                busy_mb = sum(each.hold.mb for each in self._loaded.values() if each.users)
                idle_mb = sum(each.hold.mb for each in idle)
                missing_mb = hold.need_mb - hold.free_mb
                if missing_mb > idle_mb + busy_mb:
                    raise job.make_error(hold)
                victims: list[LoadedModel] = []
                is_due = self._has_lost_patience(job)
                if is_due and not job.victims:
                    all_loaded = sorted(self._loaded.values(), key=self._get_value)
                    chosen = choose_victims(all_loaded, missing_mb)
                    job.victims = frozenset(each.model.name for each in chosen)
                elif missing_mb > idle_mb:  # unloading all idle models would not be enough, so keep them
                    self._changed.wait(POLL_SECONDS)
                    continue
                else:
                    victims = choose_victims(idle, missing_mb)
                    gap = max(MIN_GAP_SECONDS, GAP_SHARE * self._get_longest_load())
                    rest = gap - (time.monotonic() - max(each.used_at for each in victims))
                    if rest > 0 and not is_due:
                        self._changed.wait(rest)
                        continue
                for victim in victims:
                    del self._loaded[victim.model.name]
                    self._crowded.add(victim.model.name)
            if not victims:  # claims prefer requests for the model from now on
                self._on_change()
            for victim in victims:
                self._end(victim, "room")

    def _get_value(self, loaded: LoadedModel) -> tuple[float, float]:
        """Return how much a loaded model would be missed: seconds of a reload times recent uses."""
        seconds = self._loader.get_load_seconds(loaded.model.name) or DEFAULT_LOAD_SECONDS
        return seconds * self._demands[loaded.model.name].get(), loaded.used_at

    # -- unloading

    def _forget_dead(self) -> None:
        """Forget the models whose process has ended."""
        for name in [name for name, loaded in self._loaded.items() if not loaded.process.is_alive]:
            self._loaded.pop(name).hold.release()

    def _unload_all_idle(self) -> bool:
        """Unload every idle model. Return whether there was one."""
        return self._unload_unused_since(time.monotonic(), "room")

    def _unload_unused_since(self, since: float, cause: Cause) -> bool:
        with self._changed:
            idle = [each for each in self._loaded.values() if not each.users and each.used_at <= since]
            for each in idle:
                del self._loaded[each.model.name]
        for each in idle:
            self._end(each, cause)
        return bool(idle)

    def _unload_idle(self) -> None:
        interval = min(MAX_IDLE_CHECK_SECONDS, self._idle_seconds / IDLE_CHECKS)
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: self._is_closed, interval):
                    return
            self._unload_unused_since(time.monotonic() - self._idle_seconds, "idle")

    def _end(self, loaded: LoadedModel, cause: Cause) -> None:
        """End a model that nobody can reach any more."""
        self._loader.unload(loaded.process, loaded.hold)
        with self._changed:
            self.unloads[cause] += 1
            self._changed.notify_all()


def choose_victims(idle: list[LoadedModel], missing_mb: int) -> list[LoadedModel]:
    """Return the models to unload, the least missed first, without those whose memory is not needed then."""
    victims: list[LoadedModel] = []
    freed = 0
    for each in idle:
        if freed >= missing_mb:
            break
        victims.append(each)
        freed += each.hold.mb
    for each in victims[:-1]:  # one that goes last may be large enough alone
        if freed - each.hold.mb >= missing_mb:
            victims.remove(each)
            freed -= each.hold.mb
    return victims


def check_time(context: StageContext, name: str) -> None:
    """Raise JobCancelled or StageTimeout if a stage that waits for `name` is over."""
    context.check()
    if context.deadline is not None and time.monotonic() >= context.deadline:
        raise StageTimeout(
            "The stage's time limit passed while it waited for memory of its device", {"model": name}
        )


def copy_error(error: GridError) -> GridError:
    """Return a copy of an error, for one of several stages: each adds its own details."""
    return type(error)(error.message, dict(error.details))


def make_closing_error() -> SeatUnavailable:
    """Return the error of a stage whose seat closes: another seat may take it at once."""
    return SeatUnavailable("The seat is closing", {"retry_after": 0})
