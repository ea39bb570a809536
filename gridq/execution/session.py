"""A seat at work: its session with the grid, its leases, its slots.

A `Session` is one incarnation of one seat. It registers, renews its leases each second on a thread of its own
(so that nothing slow delays a renewal), and answers wake-ups with `work`: claim, run, record and claim again,
for as long as there is work or until the slot's linger time is over.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from functools import partial
from itertools import count

from redis.exceptions import ConnectionError, RedisError, TimeoutError

from gridq.config.settings import Settings
from gridq.errors import (
    ModelInCooldown,
    ModelUnavailable,
    RequestRefused,
    SeatError,
    SeatInUse,
    SeatRateLimited,
)
from gridq.execution.attempt import Attempt, Runner
from gridq.execution.circuit_breaker import CircuitBreaker
from gridq.execution.model_health import ModelHealth
from gridq.execution.outcome import Completed, Failed
from gridq.execution.piece_writer import PieceWriter
from gridq.execution.recorder import Recorder
from gridq.messaging.monitor_events import Monitors
from gridq.process.periodic import PeriodicThread
from gridq.protocol.models import ModelCooldown, SeatTerms
from gridq.protocol.queue_names import is_built_in
from gridq.protocol.running_times import RunTimes
from gridq.protocol.seat_states import Unavailable, format_unavailable
from gridq.store.replies import Claim
from gridq.store.scripts import Scripts
from gridq.telemetry import narration

log = logging.getLogger(__name__)

CHECKS_PER_RENEWAL = 4
"""The checks of a busy seat between two renewals for stages that were cancelled or ran out of time."""

CLAIM_TRIES = 100
"""The claims of a slot, if the server asks for another each time, before it waits for a wake-up."""

CLAIM_GRACE_SECONDS = 2.0
"""How long a session that stops waits for the replies to claims that were sent before."""

SEAT_RECORD_TTL_SECONDS = 40 * 24 * 3600.0
"""The life of a seat's record after the seat was last live."""


SentClaim = Callable[[], Claim | str]
"""A function that waits for the reply to a claim and returns it, from `Scripts.send_claim`."""


class Session:
    """One incarnation of one seat, live from `start` to `stop`.

    Callbacks: `on_end(job)` when a script of this session ended a job whose answer Celery waits for;
    `on_gone()` when the server has forgotten the seat, before it registers again; `on_change()` when the seat
    becomes unavailable or available again; `on_renewed()` after each renewal of a seat that takes work.
    `warm()` returns the queues whose work would start soonest here, and `pass_over()` the other queues whose
    stages may be passed over for that work for more or fewer seconds than usual. `find_queues(models)`
    returns the queues that the seat serves while these models are in cooldown.
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
        record_ttl: float = SEAT_RECORD_TTL_SECONDS,
        on_end: Callable[[str], None] | None = None,
        on_gone: Callable[[], None] | None = None,
        on_change: Callable[[], None] | None = None,
        on_renewed: Callable[[], None] | None = None,
        monitors: Monitors | None = None,
        warm: Callable[[], Sequence[str]] | None = None,
        pass_over: Callable[[], Mapping[str, float]] | None = None,
        find_queues: Callable[[Collection[str]], Sequence[str]] | None = None,
    ) -> None:
        self.scripts = scripts
        self.config = config
        self.seat = seat
        self.host = host
        self.concurrency = concurrency
        self.queues = tuple(queues)
        """Those that it serves now; all of its queues while all of its models are in cooldown."""
        self._all_queues = self.queues
        self.worker = worker or seat
        self.terms = terms or SeatTerms()
        self.incarnation = secrets.token_hex(8)
        self.draining = False
        self.breaker = CircuitBreaker()
        self.models = ModelHealth()
        self.paused: Unavailable | None = None
        """The reason why the seat's owner has paused it; None if it is lent."""
        self.outage: Unavailable | None = None
        """The reason why what is behind the seat cannot work, such as an engine that ended, or None."""
        self.running_times = RunTimes()
        self.on_change = on_change or (lambda: None)
        self.runner = runner
        self._record_ttl = record_ttl
        self._on_end = on_end or (lambda job: None)
        self._on_gone = on_gone or (lambda: None)
        self._on_renewed = on_renewed or (lambda: None)
        self._warm = warm or (lambda: ())
        self._pass_over = pass_over or (lambda: {})
        self.find_queues = find_queues or (lambda models: self._all_queues)
        self._all_models_down: Unavailable | None = None  # all of them
        self._health_lock = threading.Lock()
        self._announce_due = False  # the server does not know the last cooldowns yet
        self._told_unavailable = False
        self._free_slots = deque(range(concurrency))
        self._slot_numbers = count(concurrency)
        self._slots_at_work: set[str] = set()  # they run something, or claim
        self._running: dict[str, Attempt] = {}
        self._protected: set[str] = set()  # the leases of protected stages that run
        self._recorded = 0  # stages recorded by this session
        self._reported = 0  # how many of them the server knows of
        self._reported_times: dict[str, int] = {}  # expected running times, as the server knows them
        self._lock = threading.Lock()
        self._abandoned: set[str] = set()  # slots whose thread is held by code that does not stop
        self._renewer = PeriodicThread(f"renew {seat}", config.renew_ms / 1000, self.renew)
        self._checker = PeriodicThread(
            f"watch {seat}", config.renew_ms / 1000 / CHECKS_PER_RENEWAL, self.check_running
        )
        self._piece_writer = PieceWriter(seat, scripts)
        self._recorder = Recorder(
            scripts,
            config,
            seat=seat,
            incarnation=self.incarnation,
            monitors=monitors,
            is_over=lambda: self.stopped,
        )

    # -- life

    def start(self) -> None:
        """Go live and begin to renew. SeatInUse: another live worker, on another host, serves the seat."""
        self.register()
        narration.narrate(
            "seat live", worker=self.worker, concurrency=self.concurrency, queues=list(self.queues)
        )
        self._renewer.start()
        self._checker.start()

    def register(self) -> None:
        """Make the seat live, or update what the server knows of it. SeatInUse: as for `start`."""
        hourly = self.terms.hourly
        timeout_ms = int(min(self.config.stage_timeout, self.config.max_deadline) * 1000)
        other = self.scripts.register(
            self.seat,
            self.incarnation,
            host=self.host,
            concurrency=1 if self.is_shielded else self.breaker.limit_concurrency(self.concurrency),
            queues=self.queues,
            record_ttl_ms=int(self._record_ttl * 1000),
            worker=self.worker,
            limits=self.terms.limits,
            requests_per_minute=self.terms.requests_per_minute,
            draining=self.draining or self.unavailable is not None,
            unavailable=self._format_unavailable(),
            lent_to=self.terms.lends_to,
            owner=self.terms.owner,
            families=self.terms.families,
            prices=self.terms.prices,
            hourly_price=None if hourly is None else (hourly, timeout_ms),
            keeps_prompts=self.terms.keeps_prompts,
        )
        if other is not None:
            raise SeatInUse(
                f"The seat {self.seat!r} is served by another live worker",
                {"worker": other, "fix": "stop that worker, or give this machine an id of its own"},
            )

    def drain(self) -> bool:
        """Take no more stages; what runs goes on. Return whether the server could be told."""
        if not self.draining:
            narration.narrate("seat draining", worker=self.worker)
        self.draining = True
        try:
            self.scripts.leave(self.seat, self.incarnation, "drain")
        except RedisError as exc:
            log.warning("seat %s: the server could not be told that it drains: %s", self.seat, exc)
            return False
        return True

    def stop(self, within: float | None = None) -> None:
        """Drain, wait up to `within` seconds (default GRIDQ_DRAIN), hand back what still runs, and leave."""
        if not self.draining:  # only once: if the server is away, each command takes seconds
            self.drain()
        until = time.monotonic() + (self.config.drain if within is None else within)
        claims_until = min(until, time.monotonic() + CLAIM_GRACE_SECONDS)
        while (self._running and time.monotonic() < until) or (
            self._slots_at_work and time.monotonic() < claims_until  # what is claimed runs soon
        ):
            time.sleep(0.02)
        self.hand_back(self.running().values())
        if not self.stopped:
            narration.narrate("seat left", worker=self.worker)
        self._checker.stop()
        self._piece_writer.stop()
        self._renewer.stop()
        try:
            self.scripts.leave(self.seat, self.incarnation, "go")
        except RedisError as exc:
            log.warning("seat %s: the server could not be told that it leaves: %s", self.seat, exc)

    def hand_back(self, attempts: Iterable[Attempt]) -> None:
        """Stop attempts and give their stages back, with the attempts unspent."""
        server_away = False
        for attempt in attempts:
            with self._log_context(attempt):
                if server_away:
                    attempt.cancel("lost")
                    continue
                attempt.cancel("back")
                try:
                    self._recorder.record_failure(attempt, attempt.give_back())
                except RedisError as exc:  # the leases expire; the others need not wait for the server too
                    server_away = True
                    log.warning("seat %s could not hand back what it runs: %s", self.seat, exc)

    def running(self) -> dict[str, Attempt]:
        """Return what runs now, by lease."""
        with self._lock:
            return dict(self._running)

    @property
    def stopped(self) -> bool:
        """True if the session has left the grid."""
        return self._renewer.stopped

    @property
    def busy(self) -> int:
        return len(self._running)

    @property
    def is_shielded(self) -> bool:
        """True while a protected stage runs: the seat takes nothing more, and what ran before goes on."""
        return bool(self._protected)

    # -- slots

    def work(self) -> None:
        """Answer a wake-up: run stages on a free slot until there are none or the linger time is over."""
        self.begin_work()()

    def begin_work(self) -> Callable[[], None]:
        """Take a free slot and send its first claim. Return the rest of `work` for the slot's thread; while
        that thread starts, the server claims.
        """
        try:
            number = self._free_slots.popleft()
        except IndexError:  # every slot is busy and will claim again by itself
            return lambda: None
        slot = f"{self.incarnation}.{number}"
        self._slots_at_work.add(slot)
        sent = None
        with contextlib.suppress(Exception):  # the slot's thread tries it again, and frees the slot
            sent = self._send_claim(slot)
        return partial(self._work_on, number, slot, sent)

    def _work_on(self, number: int, slot: str, sent: SentClaim | None) -> None:
        until = time.monotonic() + self.config.linger
        try:
            claim = self._claim(slot, sent)
            while isinstance(claim, Claim):
                recorded = self._run_claim(claim, slot, until)
                if recorded is None:
                    # Under this slot's name the claim would be given again, and nobody would know that it ran
                    # before. So the slot gets a new name: the lease expires and the attempt counts as lost.
                    number = next(self._slot_numbers)
                    return
                ended, following = recorded
                self._notify_end(ended, claim.job)
                if slot in self._abandoned:  # another thread goes on in its place
                    return
                claim = self._next_claim(following, slot, until)
        except (ConnectionError, TimeoutError) as exc:  # a wake-up was lost: the sweep sends another
            log.warning("a slot of %s could not go on: %s", self.seat, exc)
        finally:
            self._slots_at_work.discard(slot)
            if slot in self._abandoned:
                self._abandoned.discard(slot)
            else:
                self._free_slots.append(number)

    def _takes_another(self, slot: str, until: float) -> bool:
        """Return whether `slot` takes another stage after the one it runs."""
        return time.monotonic() < until and not (
            self.draining or self.unavailable or self.is_shielded or slot in self._abandoned
        )

    def _send_claim(self, slot: str) -> SentClaim | None:
        """Claim without waiting for the reply; None if the seat takes no work."""
        if self.draining or self.unavailable:
            return None
        return self.scripts.send_claim(self.seat, self.incarnation, slot, secrets.token_hex(8))

    def _claim(self, slot: str, sent: SentClaim | None = None) -> Claim | None:
        """Return the next stage for `slot`, or None if there is none for this seat. `sent` is a claim that
        `_send_claim` has sent.
        """
        for _ in range(CLAIM_TRIES):
            sent = sent or self._send_claim(slot)
            if sent is None:
                return None
            found, sent = sent(), None
            if isinstance(found, Claim):
                return found
            if found == "gone":
                self._register_again()
            elif found != "again":
                return None
        return None

    def _next_claim(self, following: Claim | str, slot: str, until: float) -> Claim | None:
        """Return the slot's next stage, by what the recording script replied."""
        if isinstance(following, Claim):
            return following
        if following in ("again", "gone") or (following == "failed" and time.monotonic() < until):
            return self._claim(slot)
        return None

    def _run_claim(self, claim: Claim, slot: str, until: float) -> tuple[str, Claim | str] | None:
        """Run one claim and record its outcome. Return how it ended the job ('' if it did not) and what the
        script replied about the next stage; None if no outcome could be recorded.
        """
        try:
            attempt = Attempt(
                claim,
                slot,
                self.config,
                worker=self.worker,
                runner=self.runner,
                read_value=lambda data: self._recorder.read_value(attempt, data),
                piece_writer=self._piece_writer,
                models=self.models,
                on_first_piece=lambda: self._note_first_piece(attempt),
            )
            with self._lock:
                self._running[claim.lease] = attempt
            if self.paused:  # since it was claimed
                attempt.cancel("back")
            if attempt.is_protected:
                self._protected.add(claim.lease)
                self._announce_shield()
            with self._log_context(attempt):
                if attempt.step.ops:  # else it only puts together what other stages made
                    narration.narrate("stage claimed", wait_ms=claim.wait_ms)
                outcome = attempt.run()
                if isinstance(outcome, Completed):
                    return self._record_completion(attempt, outcome, until)
                return self._record_failure(attempt, outcome)
        except RedisError as exc:
            log.warning("the outcome of %s could not be recorded: %s", claim.lease, exc)
        except Exception:
            log.exception("the outcome of %s could not be recorded", claim.lease)
        finally:
            self.models.end(claim.lease)
            with self._lock:
                self._running.pop(claim.lease, None)
            self._end_shield(claim.lease)
        return None

    def _record_completion(
        self, attempt: Attempt, completed: Completed, until: float
    ) -> tuple[str, Claim | str]:
        result, ended, following = self._recorder.record_completion(
            attempt, completed.output, take_next=lambda: self._takes_another(attempt.slot, until)
        )
        if result == -1:
            log.info("a late result was fenced off: %s", attempt.claim.lease)
        elif result == -2:  # the value is not there: as if the attempt had been lost
            return self._record_failure(attempt, attempt.fail(SeatError("The output could not be written")))
        else:
            self._note_success(attempt)
            narration.narrate_completion(attempt.rows, ended)
        return ended, following

    def _record_failure(self, attempt: Attempt, failed: Failed) -> tuple[str, str]:
        if not is_built_in(attempt.claim.queue):  # else the URL that the stage called is down, not the seat
            self._note_failure(attempt, failed)
        ended = self._recorder.retry(attempt, lambda: self._recorder.record_failure(attempt, failed))
        return ended, "failed"

    def _note_failure(self, attempt: Attempt, failed: Failed) -> None:
        """Count a failure for the health of the seat, or of the model that the attempt used."""
        error, claim = failed.seat_error, attempt.claim
        if failed.answered:
            self.breaker.record_success()
        if error is None or isinstance(error, ModelInCooldown):  # the seat and the model are well
            return
        try:
            spares_seat = isinstance(error, ModelUnavailable | RequestRefused)
            if attempt.model and (spares_seat or (isinstance(error, SeatRateLimited) and error.blames_model)):
                self.report_model_failure(attempt.model, error, claim)
            elif not spares_seat:
                # A stage that kills its process is quarantined. Its agent may submit more of them, so only
                # the deaths of several agents' stages speak against the seat.
                self.report_seat_failure(error, claim.agent if failed.kind == "died" else claim.stage)
        except RedisError as exc:
            log.warning("seat %s: the server could not be told of its cooldown: %s", self.seat, exc)

    def _note_first_piece(self, attempt: Attempt) -> None:
        """End the trial of the seat and the model now: the stream may take minutes."""
        if attempt.model:
            self.models.record_success(attempt.model)
        if not is_built_in(attempt.claim.queue):
            self.breaker.pass_trial()

    def _note_success(self, attempt: Attempt) -> None:
        """Count a recorded stage. The next renewal reports it: it speaks for the seat's reliability."""
        queue = attempt.claim.queue
        with self._lock:
            self._recorded += 1
        self.running_times.record(queue, time.monotonic() - attempt.started)
        if attempt.model:
            self.models.record_success(attempt.model)
        if not is_built_in(queue):
            self.breaker.record_success()

    def _log_context(self, attempt: Attempt) -> AbstractContextManager[None]:
        """Add to what is logged within it which attempt it is about."""
        claim, step = attempt.claim, attempt.step
        return narration.log_context(
            job=claim.job,
            name=claim.name,
            stage=step.path,
            runs="+".join(op.name for op in step.ops),
            attempt=claim.attempt,
            worker=self.worker,
        )

    def _notify_end(self, ended: str, job: str) -> None:
        """Publish the answer of a job that a script of this session ended, if Celery waits for one."""
        if ended == "celery":
            self._on_end(job)

    # -- renewal, each second

    def renew(self) -> None:
        """Renew the seat and its leases, and stop attempts whose leases are lost."""
        with self._lock:
            running = dict(self._running)
            recorded = self._recorded
        times = {} if self.terms.hourly is None else self.running_times.estimate_ms(self.queues)
        lost = self.scripts.renew(
            self.seat,
            self.incarnation,
            list(running),
            self._warm(),
            None if recorded == self._reported else recorded,
            stage_ms=None if times == self._reported_times else times,
            pass_over=self._pass_over(),
        )
        if lost is None:
            self._reported_times = {}
            self._register_again()
            lost = []
        else:
            self._reported, self._reported_times = recorded, times
        self._advance_breaker()
        for lease in lost:
            running[lease].cancel("lost")
        self._recorder.announce(list(running.values()))
        if not (self.draining or self.unavailable):
            self._on_renewed()

    def renew_soon(self) -> None:
        """Renew at once: what `warm` or `pass_over` returns has changed."""
        self._renewer.hurry()

    def _register_again(self) -> None:
        """Register a seat that the server has forgotten, as at its start: others may submit its stages."""
        self._on_gone()
        try:
            self.register()
        except SeatInUse:
            self.draining = True  # another machine has taken the seat over: what runs here is lost anyway
            raise

    # -- between renewals

    def check_running(self) -> None:
        """Stop what was cancelled or is over its time, and leave code behind that does not stop. An idle seat
        asks the server nothing.
        """
        running = self.running()
        if not running:
            return
        for attempt in running.values():
            try:
                with self._log_context(attempt):
                    attempt.enforce_deadline()
                    self._release_stuck(attempt)
            except RedisError as exc:  # the others are checked all the same
                log.warning("seat %s: %s", self.seat, exc)
        with contextlib.suppress(RedisError):  # the next renewal finds them too
            for lease in self.scripts.find_fenced(list(running)):
                if lease in self._running:
                    running[lease].cancel("lost")

    def _release_stuck(self, attempt: Attempt) -> None:
        if not attempt.is_stuck:
            return
        if attempt.cancelled == "timeout":  # the job need not wait for it
            self._notify_end(self._recorder.record_failure(attempt, attempt.time_out()), attempt.claim.job)
        if not (attempt.cancelled == "back" and self.draining):
            self._abandon(attempt)

    def _abandon(self, attempt: Attempt) -> None:
        """Let a stand-in thread serve the slot of an attempt that does not stop, until that code returns."""
        with self._lock:
            if self._running.pop(attempt.claim.lease, None) is None:
                return
            self._abandoned.add(attempt.slot)
            self._slots_at_work.discard(attempt.slot)
        self.models.end(attempt.claim.lease)  # else nobody could try its model until that code returns
        self._end_shield(attempt.claim.lease)
        log.warning("%s does not stop: its slot goes on without it", attempt.step.path)
        self._free_slots.append(next(self._slot_numbers))
        threading.Thread(target=self._stand_in, args=(attempt.slot,), name="stand-in", daemon=True).start()

    def _stand_in(self, slot: str) -> None:
        """Look for work as a wake-up would, for a slot whose own thread cannot."""
        while slot in self._abandoned and not self.stopped:
            self.work()
            time.sleep(self._checker.seconds)

    # -- availability

    @property
    def unavailable(self) -> Unavailable | None:
        """The reason why the seat takes no work now, the owner's pause first; None if it does."""
        return self.paused or self.outage or self.breaker.opened or self._all_models_down

    def report_seat_failure(self, error: SeatError, request: str = "") -> None:
        """Count an attempt that failed through the seat. Several of one `request` count once.

        RedisError: this opened the circuit breaker, and the server could not be told.
        """
        cooldown = self.breaker.record_failure(error, request)
        if cooldown is not None:
            self._announce_health()
            narration.narrate("seat cooldown", code=error.code, seconds=cooldown)
            if error.reason:  # a degraded seat's is in no job's error: it is for the owner
                log.warning("seat %s: %s: %s", self.seat, error.message, error.reason)

    def report_model_failure(self, model: str, error: SeatError, claim: Claim) -> None:
        """Count an attempt that failed through one of the seat's models. RedisError: its cooldown has begun,
        and the server could not be told.
        """
        cooldown = self.models.record_failure(model, error, request=claim.job, agent=claim.agent)
        if cooldown is not None:
            self._announce_health()
            narration.narrate("model cooldown", model=model, code=error.code, seconds=cooldown)
            if error.reason:
                log.warning("seat %s: model %s: %s: %s", self.seat, model, error.message, error.reason)

    def _advance_breaker(self) -> None:
        if self.draining:
            return
        changed = [self.breaker.advance(), self.models.advance()]
        if any(changed) or self._announce_due:
            self._announce_health()

    def end_cooldown(self) -> bool:
        """End the cooldown of the seat and of its models now: one request tries each of them. Return whether
        there was one. RedisError: the server could not be told.
        """
        ended = [health.end_cooldown() for health in (self.breaker, self.models)]
        if any(ended):
            self._advance_breaker()
        return any(ended)

    @property
    def in_cooldown(self) -> bool:
        """True while the seat, or one of its models, takes no work because of a failure."""
        return self.breaker.opened is not None or bool(self.models.in_cooldown)

    def list_model_cooldowns(self) -> list[ModelCooldown]:
        """Return the models in cooldown, each with the queues that it alone keeps the seat from serving."""
        in_cooldown = self.models.in_cooldown
        if not in_cooldown:
            return []
        served = set(self.find_queues(in_cooldown))
        found = []
        for name, cause in in_cooldown.items():
            back = set(self.find_queues(in_cooldown.keys() - {name})) - served
            queues = [queue for queue in self._all_queues if queue in back]
            found.append(ModelCooldown(model=name, queues=queues, **asdict(cause)))
        return found

    def _announce_health(self) -> None:
        """Tell the server what the seat serves, now that a cooldown has begun or ended. If the server
        is away, the next renewal tells it.
        """
        with self._health_lock:  # the last one counts for the server
            self._announce_due = True
            in_cooldown = self.models.in_cooldown
            left = self.find_queues(in_cooldown) if in_cooldown else self._all_queues
            self.queues = tuple(queue for queue in self._all_queues if queue in left) or self._all_queues
            self._all_models_down = (
                min(in_cooldown.values(), key=lambda each: each.until or 0)
                if in_cooldown and not left
                else None
            )
            if self.unavailable is not None:
                self._announce_unavailable()
            elif not self.draining:
                self._announce_available()
            self._announce_due = False

    def _end_shield(self, lease: str) -> None:
        """Take other stages again, if `lease` was that of a protected one."""
        if lease in self._protected:
            self._protected.discard(lease)
            self._announce_shield()

    def _announce_shield(self) -> None:
        """Tell the server that a protected stage has begun or ended. If it is away, the next renewal does."""
        with contextlib.suppress(RedisError, SeatInUse):  # the renewal finds out who has the seat
            self._announce_health()

    def change_offer(
        self, queues: Sequence[str], families: Mapping[str, Sequence[str]], outage: Unavailable | None
    ) -> None:
        """Serve `queues` from now on, whose model families are `families`; while there is an `outage`, take
        no work at all. What runs goes on. RedisError: the server could not be told; the next renewal does.
        """
        with self._health_lock:
            self._all_queues = tuple(queues)
            self.terms = self.terms.model_copy(
                update={"families": {queue: tuple(names) for queue, names in families.items()}}
            )
            self.outage = outage
            self._announce_due = True
        self._announce_health()

    def pause(self, why: Unavailable) -> list[Attempt]:
        """Take no more stages, as the seat's owner wants, and stop what runs, except protected stages. Return
        the attempts that were stopped, for `announce_pause`. Calling it again does no harm.
        """
        if self.paused is None:
            narration.narrate("seat paused", worker=self.worker)
        self.paused = why
        stopped = [
            attempt for attempt in self.running().values() if not (attempt.has_output or attempt.is_protected)
        ]
        for attempt in stopped:
            attempt.cancel("back")
        return stopped

    def resume(self) -> None:
        """Take stages again, as the seat's owner wants; `announce_pause` tells the server."""
        self.paused = None

    def announce_pause(self, stopped: Sequence[Attempt] = ()) -> None:
        """Tell the server what the owner wants, and hand back the stages that were `stopped` for it.
        RedisError: the server could not be told; call it again.
        """
        if self.unavailable is not None:
            self._announce_unavailable()
        elif not self.draining:
            self._announce_available()
        self.hand_back(stopped)

    def _announce_unavailable(self) -> None:
        self._told_unavailable = True
        try:
            self.on_change()  # first: whoever is refused for it is told why
        finally:
            self.scripts.leave(self.seat, self.incarnation, "drain", self._format_unavailable())

    def _format_unavailable(self) -> str:
        """Return why the seat, or else some of its models, take no work, for the scripts."""
        if self.unavailable is not None:
            return format_unavailable([(self._all_queues, self.unavailable)])
        models = self.list_model_cooldowns()
        return format_unavailable(
            (m.queues, Unavailable(m.state, m.reason, m.since, m.until)) for m in models
        )

    def _announce_available(self) -> None:
        self.register()
        if self._told_unavailable:
            narration.narrate("seat available", worker=self.worker)
        self._told_unavailable = False
        self.on_change()
