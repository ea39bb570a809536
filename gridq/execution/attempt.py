"""One attempt of one stage: read its input, run it, record what came of it."""

from __future__ import annotations

import json
import logging
import secrets
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from redis.exceptions import ConnectionError, RedisError, TimeoutError

from gridq.errors import (
    DeadlineExceeded,
    GridError,
    JobCancelled,
    SeatError,
    StageTimeout,
    StreamCut,
)
from gridq.execution.outcome import CUT, Verdict, judge
from gridq.graph.plan import Op, Step, evaluate, load_step
from gridq.messaging import monitor_events
from gridq.profiles.profile import StageContext
from gridq.protocol.models import Effect, Json, StageCall, Usage
from gridq.store import values
from gridq.store.replies import Claim
from gridq.telemetry import narration

if TYPE_CHECKING:
    from gridq.execution.session import Session

log = logging.getLogger(__name__)

T = TypeVar("T")

FLUSH = 0.05
"""Seconds between two writes to a job's stream."""

GRACE = 1.0
"""Seconds that a stage which is over its time or cancelled may take to stop before its slot goes on without
it.
"""

AWAY = 300.0
"""Seconds past its time for which a result is kept while the server is away."""

Runner = Callable[[StageCall, Json, StageContext], Json]
"""What runs one stage on this seat: the built-in stages, or the seat's profile."""


class Attempt:
    """One claim, from its input to its record. `run` is called on the slot's thread, all else from any."""

    def __init__(self, claim: Claim, session: Session) -> None:
        self.claim = claim
        self.session = session
        self.started = time.monotonic()
        self.step: Step = load_step(claim.spec)
        self.rows: list[dict[str, Any]] = []
        self.emitted = 0
        self.slot = ""
        self._context: StageContext | None = None
        self._pieces: list[str] = []
        self._flushed = 0.0
        self._flushing = threading.Lock()
        self._path = self.step.path
        self._at = 0  # which of its operations runs
        self._why = ""  # lost, back, timeout: why the context was cancelled
        self._reported: Usage | None = None  # what it was said to have used, where it was reported
        self._announced = False
        self._used = Usage(micro_dollars=None)
        self._cancelled_at: float | None = None
        limits = [op.timeout or session.config.stage_timeout for op in self.step.ops] or [
            session.config.stage_timeout
        ]
        # A second past the job's own deadline: it is the sweep's to enforce, and its error names the job.
        left = max(claim.remaining_ms, 0) / 1000 + 1
        self.deadline = self.started + min(sum(limits), left)
        self._for_job = left < sum(limits)
        self.made = False  # its output is there, to be recorded

    # -- the slot's thread

    def run(self, slot: str, until: float) -> tuple[str, Claim | str]:
        """('' or how the job ended, the slot's next claim or the word why there is none)."""
        self.slot = slot
        try:
            output = self._output()
        except BaseException as exc:  # a runner's SystemExit is as much a failure as any other
            return self._failed(exc), "failed"
        self.made = True
        session = self.session
        try:
            self._patiently(self._write_pieces)
        except RedisError as exc:  # the result counts for more than the last of its stream
            log.warning("pieces of %s are not in its stream: %s", self._path, exc)
        link, long = output, None
        if len(output) > session.config.inline_value:
            link, long = f"@{self.claim.lease}".encode(), output
        result, ended, after = self._complete(slot, until, link, long)
        if result == -1:
            log.info("a late result was fenced off: %s", self.claim.lease)
        elif result == -2:  # the value is not there: as if the attempt had been lost
            return self._failed(SeatError("The output could not be written")), "failed"
        else:
            session.note_recorded(self.claim.queue, time.monotonic() - self.started)
            narration.recorded(self.rows, ended)
        return ended, after

    def _complete(
        self, slot: str, until: float, output: bytes, long: bytes | None
    ) -> tuple[int, str, Claim | str]:
        """Record the output and take the slot's next stage."""
        session = self.session
        nonce = secrets.token_hex(8)
        told = self._told()
        return self._patiently(
            lambda: session.scripts.complete(
                self.claim.lease,
                output,
                used=self._used,
                rows=json.dumps(self.rows, separators=(",", ":")),
                seat=session.seat,
                incarnation=session.incarnation,
                slot=slot,
                nonce=nonce,
                go_on=session.goes_on(slot, until),
                long=long,
                long_ttl_ms=max(self.claim.remaining_ms, 0) + 3_600_000,
                told=told,
            )
        )

    def _patiently(self, act: Callable[[], T]) -> T:
        """Do `act`. While the server is away what came of the attempt is kept and told again: it may have
        cost money.
        """
        while True:
            try:
                return act()
            except (ConnectionError, TimeoutError) as exc:
                if self.session.stopped or time.monotonic() > self.deadline + AWAY:
                    raise
                log.warning("what came of %s waits for the server: %s", self._path, exc)
                time.sleep(0.5)

    def _output(self) -> bytes:
        """Run every operation of the step; the encoded output."""
        session = self.session
        store = session.scripts
        stored = dict(zip(self.claim.refs, self.claim.values, strict=True))
        decoded: dict[int, Json] = {}
        done: list[Json] = []

        def outputs(step: int) -> Json:
            if step not in decoded:
                data = stored[step]
                decoded[step] = (
                    None if data is None else values.decode(values.read(store.client, store.keys, data))
                )
            return decoded[step]

        def job_input() -> Json:
            if -1 not in decoded:
                decoded[-1] = values.decode(values.read(store.client, store.keys, self.claim.input))
            return decoded[-1]

        for number, op in enumerate(self.step.ops):
            self._at, self._path = number, op.path
            narration.now_about(stage=op.path, runs=op.name)
            value = evaluate(op.input, job_input, outputs, done)
            done.append(self._operate(op, value))
        output = evaluate(self.step.value, job_input, outputs, done)
        return values.encode(output, limit=session.config.max_value, path=self._path)

    def _operate(self, op: Op, value: Json) -> Json:
        context = StageContext(
            job=self.claim.job,
            attempt=self.claim.attempt,
            deadline=self.deadline,
            emit=self._emit if self.claim.stream else None,
        )
        self._context = context
        if self._why:
            context.cancel()
        call = StageCall(
            id=op.id,
            name=op.name,
            path=op.path,
            implementation=op.implementation,
            effects=[Effect(**effect) for effect in op.effects],
            queue=self.claim.queue,
            timeout=op.timeout,
        )
        begun = time.monotonic()
        state = "failed"
        try:
            context.check()
            output = self.session.runner(call, value, context)
            context.check()
            state = "done"
        finally:
            self._context = None
            self._row(op, context.usage, time.monotonic() - begun, state)
        return output

    def _row(self, op: Op, usage: Usage, seconds: float, state: str) -> None:
        self._used = self._used.plus(usage)
        self.rows.append(
            {
                "path": op.path,
                "stage": op.name,
                "queue": self.claim.queue,
                "worker": self.session.worker,
                "attempt": self.claim.attempt,
                **self._went_wrong(),
                "started": round(self._server_time() - seconds, 3),
                "wait_ms": self.claim.wait_ms if not self.rows else 0,
                "run_ms": round(seconds * 1000, 3),
                **usage.tokens(),
                "micro_dollars": usage.micro_dollars,
                "state": state,
            }
        )

    def _went_wrong(self) -> dict[str, int]:
        """How attempts before this one ended without an output, as far as they did."""
        claim = self.claim
        counts = {"failures": claim.failures, "losses": claim.losses, "deaths": claim.deaths}
        return {name: count for name, count in counts.items() if count}

    def _failed(self, exc: BaseException) -> str:
        """Report why there is no output; how the job ended, if it did."""
        self.flush()  # what was said before it failed was said
        found = self._judge(exc)
        kind, error, pause = found.kind, found.error, found.pause
        if isinstance(exc, SeatError) and not self._why:
            try:
                self.session.resting.failed(exc)
            except RedisError as fault:
                log.warning("seat %s could not say that it pauses: %s", self.session.seat, fault)
        # The code alone is told to monitors and logs: what else an error says may hold a prompt.
        code = exc.code if isinstance(exc, GridError) and kind != "stage" else error.code
        return self._patiently(lambda: self._report(kind, error, pause, code))

    def _report(self, kind: str, error: GridError, pause: float = 0.0, code: str = "") -> str:
        context = self._context
        used = self._used if context is None else self._used.plus(context.usage)
        with self._flushing:
            again = self._reported is not None
            if used == self._reported:
                return ""
            self._reported = used
        row = json.dumps(self.rows, separators=(",", ":")) if self.rows and kind != "back" else ""
        told = "" if again else self._told()
        code = code or error.code
        try:
            ended = self.session.scripts.fail(
                self.claim.lease,
                kind,
                pause_ms=int(pause * 1000),
                used=used,
                error=error.to_json(),
                row=row,
                seat=self.session.seat,
                told=told,
                uuid=monitor_events.uuid_of(self.claim, self._at) if told else "",
                why=code,
            )
        except BaseException:
            self._reported = None
            raise
        if not again:
            narration.unrecorded(kind, code, ended)
        return ended if ended in ("celery", "plain") else ""

    def _judge(self, exc: BaseException) -> Verdict:
        where = {"path": self._path, "worker": self.session.worker, "queue": self.claim.queue}
        place = {**where, "attempt": self.claim.attempt}
        late = isinstance(exc, StageTimeout) and self._for_job and time.monotonic() >= self.deadline
        if self._why == "timeout" or late:
            return self._timeout()
        if isinstance(exc, JobCancelled) or self._why:
            return Verdict("back", self._stopped())
        if not isinstance(exc, GridError):
            log.error("stage %s on %s: %s", self._path, self.session.seat, type(exc).__name__)
        return judge(
            exc,
            place,
            emitted=self.emitted > 0,
            failures=self.claim.failures,
            backoff=self.session.config.retry_backoff,
        )

    def _stopped(self) -> GridError:
        """What the stage ends with where it is handed back after its first token is out: any other is run
        again.
        """
        place = {"path": self._path, "worker": self.session.worker, "queue": self.claim.queue}
        return StreamCut(CUT, {**place, "reason": "the seat was taken back"})

    def _timeout(self) -> Verdict:
        """It ran for too long: the stage's fault, but not where it was the job whose time was over. Then it
        is handed back, for the sweep to end the job as soon as there is one.
        """
        place = {"path": self._path, "worker": self.session.worker}
        if self._for_job:
            return Verdict("back", DeadlineExceeded("The job was not finished by its deadline", place))
        seconds = round(self.deadline - self.started, 1)
        return Verdict("stage", StageTimeout(f"The stage ran longer than {seconds} s", place))

    # -- what monitors are told

    def announce(self) -> list[monitor_events.Event]:
        """That this attempt has begun, once."""
        if self._announced:
            return []
        self._announced = True
        return monitor_events.begun(self.claim, self.step, self.session.worker)

    def _told(self) -> str:
        """What the recording script publishes of this attempt; empty where no monitor listens."""
        if not self.step.ops or not self.session.monitored:
            return ""
        worker = self.session.worker
        begun = monitor_events.begun(self.claim, self.step, worker)
        return monitor_events.text(
            [*begun, *monitor_events.succeeded(self.claim, self.rows, worker, self._server_time())]
        )

    def _server_time(self) -> float:
        """Now, by the server's clock, as far as the claim told it."""
        return self.claim.claimed_ms / 1000 + time.monotonic() - self.started

    # -- other threads

    def lose(self) -> None:
        """The lease is no longer ours: the job was cancelled, or somebody else has the stage."""
        self.cancel("lost")

    def hand_back(self) -> None:
        """Stop, and give the stage back with the attempt unspent."""
        self.cancel("back")
        self._report("back", self._stopped())

    def tick(self) -> None:
        """A few times a second: write pieces that wait, end what overruns its time, leave what does not stop
        to itself.
        """
        self.flush()
        now = time.monotonic()
        if now > self.deadline and not self._why and not self.made:
            self.cancel("timeout")
        stuck = self._cancelled_at is not None and now > self._cancelled_at + GRACE
        if stuck and self._why == "timeout":  # the job need not wait for it
            found = self._timeout()
            ended = self._report(found.kind, found.error)
            self.session.ended(ended, self.claim.job)
        if stuck and not (self._why == "back" and self.session.draining):
            self.session.abandon(self)

    def cancel(self, why: str) -> None:
        """Stop what runs: `why` is `lost`, `back` or `timeout`."""
        if not self._why:
            self._why = why
            self._cancelled_at = time.monotonic()
        context = self._context
        if context is not None:
            # On a thread of its own: what a profile does then must not delay a renewal.
            threading.Thread(target=context.cancel, name="cancel", daemon=True).start()

    # -- the stream

    def _emit(self, piece: Json) -> None:
        text = values.encode(piece, limit=self.session.config.max_value, path=self._path).decode()
        with self._flushing:
            self._pieces.append(text)
            self.emitted += 1
            due = time.monotonic() - self._flushed >= FLUSH
        if due:
            self.flush()

    def flush(self) -> None:
        """Write the pieces that wait; while the server is away they go on waiting."""
        try:
            self._write_pieces()
        except RedisError as exc:
            log.warning("the pieces of %s wait for the server: %s", self._path, exc)

    def _write_pieces(self) -> None:
        """Write the pieces that wait; an attempt that no longer counts is cancelled."""
        with self._flushing:
            if not (pieces := list(self._pieces)):
                return
            self._flushed = time.monotonic()
            kept = self.session.scripts.emit(self.claim.lease, self._path, pieces, self.emitted - len(pieces))
            self._pieces.clear()
        if not kept:
            self.cancel("lost")
