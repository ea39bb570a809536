"""A seat at work: its session with the grid, its leases, its slots.

A `Session` is one incarnation of one seat. It registers, renews its leases each second on a thread of its own
(so that nothing slow ever delays a renewal), and `work` is what a wake-up starts: claim, run, complete and claim
again, for as long as there is work or the slot's linger time is over.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from itertools import count

from redis.exceptions import ConnectionError, RedisError, TimeoutError

from gridq.config.settings import Settings
from gridq.errors import SeatInUse
from gridq.execution.attempt import Attempt, Runner
from gridq.execution.circuit_breaker import Resting
from gridq.messaging.monitor_events import Monitors
from gridq.process.periodic import Repeat
from gridq.process.watchdog import Watchdog
from gridq.protocol.models import SeatTerms
from gridq.protocol.queue_names import PURE
from gridq.protocol.running_times import Durations
from gridq.store.replies import Claim
from gridq.store.scripts import Scripts
from gridq.telemetry import narration

log = logging.getLogger(__name__)

LOOKS = 4
"""How often a seat that runs something looks, between two renewals, for what was cancelled or is over its
time.
"""


class Session:
    """One incarnation of one seat, live from `start` to `stop`.

    `on_end(job)` is called when this session's script ended a job whose answer Celery waits for. `on_gone()`
    is called where the server has forgotten the seat, before it registers again, `on_change()` when it rests
    or comes back.
    """

    def __init__(
        self,
        scripts: Scripts,
        config: Settings,
        *,
        seat: str,
        host: str,
        concurrency: int,
        queues: Sequence[str],
        runner: Runner,
        worker: str = "",
        terms: SeatTerms | None = None,
        record_ttl: float = 40 * 24 * 3600.0,
        on_end: Callable[[str], None] | None = None,
        on_gone: Callable[[], None] | None = None,
        on_change: Callable[[], None] | None = None,
        monitors: Monitors | None = None,
        warm: Callable[[], Sequence[str]] | None = None,
    ) -> None:
        self.scripts = scripts
        self.config = config
        self.seat = seat
        self.host = host
        self.concurrency = concurrency
        self.queues = tuple(queues)
        self.runner = runner
        self.worker = worker or seat
        self.terms = terms or SeatTerms()
        self.incarnation = secrets.token_hex(8)
        self.watchdog = Watchdog(concurrency)  # it only counts, until another is set
        self.draining = False
        self.resting = Resting(self)
        self._monitors = monitors
        self._warm = warm or (lambda: ())
        self._record_ttl = record_ttl
        self._on_end = on_end or (lambda job: None)
        self._on_gone = on_gone or (lambda: None)
        self.on_change = on_change or (lambda: None)
        self._free = deque(range(concurrency))
        self._numbers = count(concurrency)
        self._running: dict[str, Attempt] = {}
        self.durations = Durations()
        self._recorded = self._told = 0  # stages that were recorded; how many of them the server knows of
        self._takes: dict[str, int] = {}  # for how long they are expected to run, as the server knows it
        self._lock = threading.Lock()
        self._abandoned: set[str] = set()  # slots whose thread is kept by code that does not stop
        self._renewer = Repeat(f"renew {seat}", config.renew_ms / 1000, self.renew)
        self._watcher = Repeat(f"watch {seat}", config.renew_ms / 1000 / LOOKS, self.look)

    # -- life

    def start(self) -> None:
        """Go live and begin to renew. SeatInUse: another live worker, on another host, serves the seat."""
        self.register()
        narration.tell(
            "seat live", worker=self.worker, concurrency=self.concurrency, queues=list(self.queues)
        )
        self._renewer.start()
        self._watcher.start()

    def register(self) -> None:
        """Make the seat live, or say again what it is. SeatInUse: as at `start`."""
        other = self.scripts.register(
            self.seat,
            self.incarnation,
            host=self.host,
            concurrency=self.resting.concurrency(self.concurrency),
            queues=self.queues,
            ttl_ms=int(self._record_ttl * 1000),
            worker=self.worker,
            limits=self.terms.limits,
            per_minute=self.terms.per_minute,
            rests=self.draining or self.resting.now is not None,
            only=self.terms.lends_to,
            owner=self.terms.owner,
            families=self.terms.families,
            prices=self.terms.prices,
            hourly=None if self.terms.hourly is None else (self.terms.hourly, self._timeout_ms()),
        )
        if other is not None:
            raise SeatInUse(
                f"The seat {self.seat!r} is served by another live worker",
                {"worker": other, "fix": "stop that worker, or give this machine an id of its own"},
            )

    def _timeout_ms(self) -> int:
        return int(min(self.config.stage_timeout, self.config.max_deadline) * 1000)

    def drain(self) -> bool:
        """Take nothing more; what runs goes on. Whether the server could be told so."""
        if not self.draining:
            narration.tell("seat draining", worker=self.worker)
        self.draining = True
        try:
            self.scripts.leave(self.seat, self.incarnation, "drain")
        except RedisError as exc:
            log.warning("seat %s could not say that it drains: %s", self.seat, exc)
            return False
        return True

    def stop(self, within: float | None = None) -> None:
        """Drain, wait up to `within` seconds (default GRIDQ_DRAIN), hand back what still runs, and leave."""
        if not self.draining:  # said once: where the server is away, each word takes seconds
            self.drain()
        until = time.monotonic() + (self.config.drain if within is None else within)
        while self._running and time.monotonic() < until:
            time.sleep(0.02)
        self.hand_back(self.running().values())
        if not self.stopped:
            narration.tell("seat gone", worker=self.worker)
        self._watcher.stop()
        self._renewer.stop()
        try:
            self.scripts.leave(self.seat, self.incarnation, "go")
        except RedisError as exc:
            log.warning("seat %s could not say that it goes: %s", self.seat, exc)

    def hand_back(self, attempts: Iterable[Attempt]) -> None:
        """Stop attempts, and give their stages back as if they had not been begun."""
        away = False
        for attempt in attempts:
            with self._about(attempt):
                if away:
                    attempt.lose()
                    continue
                try:
                    attempt.hand_back()
                except RedisError as exc:  # the leases lapse; the others need not wait for the server too
                    away = True
                    log.warning("seat %s could not hand back what it runs: %s", self.seat, exc)

    def running(self) -> dict[str, Attempt]:
        """What runs now, by its lease."""
        with self._lock:
            return dict(self._running)

    @property
    def stopped(self) -> bool:
        """Whether the session has left the grid."""
        return self._renewer.stopped

    @property
    def monitored(self) -> bool:
        """Whether a monitor of Celery's wants to know what runs here."""
        return self._monitors is not None and self._monitors.listen

    @property
    def busy(self) -> int:
        """How many stages run now."""
        return len(self._running)

    # -- slots

    def work(self) -> None:
        """Answer a wake-up: run stages on a free slot until there are none, or the linger time is over."""
        try:
            number = self._free.popleft()
        except IndexError:  # every slot is busy and will look again by itself
            return
        slot = f"{self.incarnation}.{number}"
        until = time.monotonic() + self.config.linger
        try:
            claim = self.claim(slot)
            while isinstance(claim, Claim):
                attempt = self._attempt(claim, slot, until)
                if attempt is None:
                    # Under the slot's name the claim would be given again, and no one would know that it ran
                    # before: it lapses instead, and is counted as lost.
                    number = next(self._numbers)
                    return
                if slot in self._abandoned:  # another thread goes on in its place
                    self.ended(attempt[0], claim.job)
                    return
                claim = self._after(claim.job, *attempt, slot, until)
        except (ConnectionError, TimeoutError) as exc:  # a wake-up was lost: the sweep rings again
            log.warning("a slot of %s could not go on: %s", self.seat, exc)
        finally:
            if slot in self._abandoned:
                self._abandoned.discard(slot)
            else:
                self._free.append(number)

    def goes_on(self, slot: str, until: float) -> bool:
        """Whether `slot` takes another stage after the one it has."""
        return time.monotonic() < until and not (self.draining or self.resting.now or slot in self._abandoned)

    def abandon(self, attempt: Attempt) -> None:
        """An attempt that no longer counts does not stop: its slot goes on without it, on a thread that
        stands in until that code returns.
        """
        with self._lock:
            if self._running.pop(attempt.claim.lease, None) is None:
                return
            self._abandoned.add(attempt.slot)
        log.warning("%s does not stop: its slot goes on without it", attempt.step.path)
        self._free.append(next(self._numbers))
        threading.Thread(target=self._stand_in, args=(attempt.slot,), name="stand-in", daemon=True).start()

    def _stand_in(self, slot: str) -> None:
        """Look for work as a wake-up would, for a slot whose own thread cannot."""
        while slot in self._abandoned and not self.stopped:
            self.work()
            time.sleep(self._watcher.seconds)

    def claim(self, slot: str) -> Claim | None:
        """The next stage for `slot`, or None where there is none for this seat."""
        for _ in range(100):
            if self.draining or self.resting.now:
                return None
            found = self.scripts.claim(self.seat, self.incarnation, slot, secrets.token_hex(8))
            if isinstance(found, Claim):
                return found
            if found == "gone":
                self._again()
            elif found != "again":
                return None
        return None

    def _attempt(self, claim: Claim, slot: str, until: float) -> tuple[str, Claim | str] | None:
        """Run one claim: how the job ended and what comes next. None where neither an output nor a failure
        could be recorded.
        """
        try:
            attempt = Attempt(claim, self)
            with self._lock:
                self._running[claim.lease] = attempt
            if self.resting.own:  # since it was asked for
                attempt.cancel("back")
            with self._about(attempt):
                if attempt.step.ops:  # else it only puts together what other stages made
                    narration.tell("stage taken", wait_ms=claim.wait_ms)
                return attempt.run(slot, until)
        except RedisError as exc:
            log.warning("what came of %s could not be recorded: %s", claim.lease, exc)
        except Exception:
            log.exception("what came of %s could not be recorded", claim.lease)
        finally:
            with self._lock:
                self._running.pop(claim.lease, None)
        return None

    def _about(self, attempt: Attempt) -> AbstractContextManager[None]:
        """Within it what is logged says which attempt it is about."""
        claim, step = attempt.claim, attempt.step
        return narration.about(
            job=claim.job,
            name=claim.name,
            stage=step.path,
            runs="+".join(op.name for op in step.ops),
            attempt=claim.attempt,
            worker=self.worker,
        )

    def _after(self, job: str, ended: str, after: Claim | str, slot: str, until: float) -> Claim | None:
        """The slot's next stage."""
        self.ended(ended, job)
        if isinstance(after, Claim):
            return after
        if after in ("again", "gone") or (after == "failed" and time.monotonic() < until):
            return self.claim(slot)
        return None

    # -- renewal

    def note_recorded(self, queue: str, seconds: float) -> None:
        """One more stage was recorded, which held its slot for so long: with the next renewal it speaks for
        the seat.
        """
        with self._lock:
            self._recorded += 1
        self.durations.note(queue, seconds)
        if queue != PURE:  # which says nothing of what the seat is lent for
            self.resting.succeeded()

    def renew(self) -> None:
        """One beat: renew seat and leases, stop what was lost."""
        with self._lock:
            running = dict(self._running)
            recorded = self._recorded
        told = None if recorded == self._told else recorded
        takes = {} if self.terms.hourly is None else self.durations.expected(self.queues)
        news = None if takes == self._takes else takes
        lost = self.scripts.renew(self.seat, self.incarnation, list(running), self._warm(), told, takes=news)
        if lost is None:
            self._takes = {}
            self._again()
            lost = []
        else:
            self._told, self._takes = recorded, takes
        self.resting.recover()
        for lease in lost:
            running[lease].lose()
        if self._monitors is not None and self._monitors.listen:
            self._monitors.beat([event for attempt in running.values() for event in attempt.announce()])
        if not (self.draining or self.resting.now):
            self.watchdog.look()

    def look(self) -> None:
        """Between renewals: stop what was cancelled, end what has overrun its time. Idle it asks nothing."""
        running = self.running()
        if not running:
            return
        for attempt in running.values():
            try:
                with self._about(attempt):
                    attempt.tick()
            except RedisError as exc:  # the others' time is looked at all the same
                log.warning("seat %s: %s", self.seat, exc)
        with contextlib.suppress(RedisError):  # the next renewal tells of it
            for lease in self.scripts.fenced(list(running)):
                if lease in self._running:
                    running[lease].lose()

    def _again(self) -> None:
        """The server does not know the seat as live: say everything again, then go live again, as at a start:
        whoever sees it live may submit one of its stages.
        """
        self._on_gone()
        try:
            self.register()
        except SeatInUse:
            self.draining = True  # another machine has taken the seat over: what runs here is lost anyway
            raise

    def ended(self, how: str, job: str) -> None:
        """A job was ended by one of this session's scripts: see to its answer where Celery waits for one."""
        if how == "celery":
            self._on_end(job)


_current: list[Session] = []


def attach(session: Session | None) -> None:
    """Make `session` the one that this process's wake-ups start (None: none)."""
    _current[:] = [] if session is None else [session]


def current() -> Session | None:
    """The session of this process, if it serves a seat."""
    return _current[0] if _current else None
