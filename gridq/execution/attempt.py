"""One attempt of one stage: read its input, run it, return its outcome."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Literal

from gridq.config.settings import Settings
from gridq.errors import (
    DeadlineExceeded,
    GridError,
    InputTooLarge,
    JobCancelled,
    SeatError,
    StageError,
    StageTimeout,
    StreamCut,
)
from gridq.execution.model_health import ModelHealth
from gridq.execution.outcome import STREAM_CUT, Completed, Failed, Outcome, classify_failure
from gridq.execution.piece_writer import PieceStream, PieceWriter
from gridq.graph.plan import Op, Step, evaluate, load_step
from gridq.profiles.profile import StageContext
from gridq.protocol.models import Json, StageCall, Usage
from gridq.store import values
from gridq.store.replies import Claim
from gridq.telemetry import narration
from gridq.telemetry.tracebacks import format_user_traceback

log = logging.getLogger(__name__)

GRACE_SECONDS = 1.0
"""The time in which a cancelled stage must stop; after that its slot goes on without it."""

Runner = Callable[[StageCall, Json, StageContext], Json]
"""Runs one stage on this seat: `stages.run_builtin`, or the seat's profile."""

CancelReason = Literal["", "lost", "back", "timeout"]
"""The cause of a cancel: the lease is lost, the stage is handed back, or its time is over."""


class Attempt:
    """One claim of a stage on one slot, from its input to its outcome.

    `read_value` turns a stored value or a link to one into its bytes. `piece_writer` writes what is streamed.
    `models` is the health of the seat's models. `on_first_piece` is called before the first piece is written.
    The slot's thread calls `run`; any thread may call the rest.
    """

    def __init__(
        self,
        claim: Claim,
        slot: str,
        config: Settings,
        *,
        worker: str,
        runner: Runner,
        read_value: Callable[[bytes], bytes | bytearray],
        piece_writer: PieceWriter,
        models: ModelHealth,
        on_first_piece: Callable[[], None] = lambda: None,
    ) -> None:
        self.claim = claim
        self.slot = slot
        self.worker = worker
        self.started = time.monotonic()
        self.step: Step = load_step(claim.spec)
        self.rows: list[dict[str, Any]] = []
        self.operation = 0
        """The index of the operation that runs, in `step.ops`."""
        self.path = self.step.path
        self.emitted = 0
        self.cancelled: CancelReason = ""
        self.has_output = False
        self.reporting = threading.Lock()
        """Held while a failure is being recorded."""
        self.reported_usage: Usage | None = None
        """The usage that was recorded with a failure; None if there was none."""
        self.model = ""
        """The seat's model that it uses, as the profile named it; empty: none."""
        self.announced = False
        """True once monitors have been told that the attempt has begun."""
        self._config = config
        self._runner = runner
        self._read_value = read_value
        self._piece_writer = piece_writer
        self._models = models
        self._on_first_piece = on_first_piece
        self._stream = PieceStream(claim.lease, on_fenced=lambda: self.cancel("lost"))
        self._context: StageContext | None = None
        self._usage = Usage(micro_dollars=None)
        self._cancelled_at: float | None = None
        limits = [op.timeout or config.stage_timeout for op in self.step.ops] or [config.stage_timeout]
        # A second past the job's own deadline: enforcing that is the sweep's, and its error names the job.
        self._job_deadline = self.started + max(claim.remaining_ms, 0) / 1000 + 1
        self.deadline = min(self.started + sum(limits), self._job_deadline)
        self._ends_with_job = self._job_deadline < self.started + sum(limits)

    # -- the slot's thread

    def run(self) -> Outcome:
        """Run every operation of the step."""
        try:
            output = self._run_operations()
        except BaseException as exc:  # a runner's SystemExit is as much a failure as any other
            return self.fail(exc)
        self.has_output = True
        return Completed(output)

    def fail(self, exc: BaseException) -> Failed:
        """Return the outcome of an attempt that `exc` ended."""
        failed = self._classify(exc)
        trace = exc.traceback if isinstance(exc, GridError) else format_user_traceback(exc)
        if trace and self.rows and (self.rows[-1]["path"], self.rows[-1]["state"]) == (self.path, "failed"):
            self.rows[-1]["traceback"] = trace
        # Monitors and logs get the code alone: the rest of an error may contain a prompt.
        code = exc.code if isinstance(exc, GridError) and failed.kind != "stage" else ""
        seat_error = None
        if not self.cancelled and isinstance(exc, SeatError):
            seat_error = exc
        elif not self.cancelled and failed.kind == "seat":  # an exception that no profile should raise
            seat_error = SeatError("The seat's runner failed", {"reason": type(exc).__name__})
        answered = failed.kind == "stage" and "status" in failed.error.details
        return Failed(failed.kind, failed.error, failed.pause_seconds, code, seat_error, answered)

    def _run_operations(self) -> bytes:
        """Return the step's encoded output."""
        if self.claim.excess_bytes:
            raise self._build_excess_error(self.claim.excess_bytes)
        stored = dict(zip(self.claim.refs, self.claim.values, strict=True))
        decoded: dict[int, Json] = {}
        done: list[Json] = []

        def read_output(step: int) -> Json:
            if step not in decoded:
                data = stored[step]
                decoded[step] = None if data is None else values.decode(self._read_value(data))
            return decoded[step]

        def read_job_input() -> Json:
            if -1 not in decoded:
                decoded[-1] = values.decode(self._read_value(self.claim.input))
            return decoded[-1]

        try:
            for number, op in enumerate(self.step.ops):
                self.operation, self.path = number, op.path
                narration.update_log_context(stage=op.path, runs=op.name)
                value = evaluate(op.input, read_job_input, read_output, done)
                done.append(self._run_operation(op, value))
            output = evaluate(self.step.value, read_job_input, read_output, done)
            return values.encode(output, limit=self._config.max_value, path=self.path)
        finally:
            decoded.clear()  # at once: the closures that refer to it wait for the garbage collection

    def _build_excess_error(self, size: int) -> InputTooLarge:
        limit = self._config.max_stage_input
        return InputTooLarge(
            f"The stage at {self.path} would read {size} bytes of JSON",
            {
                "path": self.path,
                "bytes": size,
                "limit": limit,
                "expected": f"at most {limit} bytes in total",
                "fix": "let earlier stages return less data or references to it, or join fewer of "
                "them, or raise GRIDQ_MAX_STAGE_INPUT on every machine",
            },
        )

    def _run_operation(self, op: Op, value: Json) -> Json:
        context = StageContext(
            job=self.claim.job,
            agent=self.claim.agent,
            attempt=self.claim.attempt,
            waited=self.claim.wait_ms / 1000,
            deadline=self.deadline,
            emit=self._emit if self.claim.stream else None,
            emit_together=lambda pieces: self._emit(*pieces),
            models_in_cooldown=self._models.in_cooldown,
            on_model=self._begin_model,
        )
        self._context = context
        if self.cancelled:
            context.cancel()
        call = op.make_call(self.claim.queue)
        begun = time.monotonic()
        state = "failed"
        try:
            context.check()
            output = self._runner(call, value, context)
            context.check()
            state = "done"
        finally:
            self._context = None
            self._add_row(op, context, time.monotonic() - begun, state)
        return output

    def _begin_model(self, name: str) -> None:
        self._models.begin(name, self.claim.lease)
        self.model = name

    def _add_row(self, op: Op, context: StageContext, seconds: float, state: str) -> None:
        usage, dropped = context.usage, context.dropped_fields
        self._usage = self._usage.add(usage)
        claim = self.claim
        earlier = {"failures": claim.failures, "losses": claim.losses, "deaths": claim.deaths}
        self.rows.append(
            {
                "path": op.path,
                "stage": op.name,
                "queue": claim.queue,
                "worker": self.worker,
                "attempt": claim.attempt,
                **{name: count for name, count in earlier.items() if count},
                "started": round(self.server_time() - seconds, 3),
                "wait_ms": claim.wait_ms if not self.rows else 0,
                "run_ms": round(seconds * 1000, 3),
                **usage.get_token_fields(),
                "micro_dollars": usage.micro_dollars,
                **({"gpu_seconds": usage.gpu_ms / 1000} if usage.gpu_ms else {}),
                **({"dropped_fields": dropped} if dropped else {}),
                "state": state,
            }
        )

    # -- failures

    def _classify(self, exc: BaseException) -> Failed:
        place = {"path": self.path, "worker": self.worker, "queue": self.claim.queue}
        job_over = isinstance(exc, StageTimeout) and self._ends_with_job and time.monotonic() >= self.deadline
        if self.cancelled == "timeout" or job_over:
            return self.time_out()
        if self.cancelled:
            return self.give_back()
        if isinstance(exc, JobCancelled):  # of another job, on which the stage waited
            exc = StageError("The stage waited for a job that was cancelled", {"reason": exc.message})
        if not isinstance(exc, GridError):
            log.error("stage %s on %s: %s", self.path, self.worker, type(exc).__name__, exc_info=exc)
        return classify_failure(
            exc,
            {**place, "attempt": self.claim.attempt},
            emitted=self.emitted > 0,
            failures=self.claim.failures,
            backoff=self._config.retry_backoff,
        )

    def give_back(self) -> Failed:
        """Return the outcome that hands the stage back. Its error counts only once the first token is out."""
        place = {"path": self.path, "worker": self.worker, "queue": self.claim.queue}
        return Failed("back", StreamCut(STREAM_CUT, {**place, "reason": "the seat was taken back"}))

    def time_out(self) -> Failed:
        """Return the outcome of an attempt that ran for too long. Where it is the job whose time is over, the
        stage is handed back, and the sweep ends the job.
        """
        place = {"path": self.path, "worker": self.worker}
        if self._ends_with_job:
            return Failed("back", DeadlineExceeded("The job was not finished by its deadline", place))
        seconds = round(self.deadline - self.started, 1)
        return Failed("stage", StageTimeout(f"The stage ran longer than {seconds} s", place))

    # -- any thread

    def usage(self) -> Usage:
        """Return what the attempt has used so far."""
        context = self._context
        return self._usage if context is None else self._usage.add(context.usage)

    def server_time(self) -> float:
        """Return the time of the server's clock, in seconds since 1970, as the claim told it."""
        return self.claim.claimed_ms / 1000 + time.monotonic() - self.started

    def cancel(self, reason: CancelReason) -> None:
        """Stop what runs. The first reason counts."""
        if not self.cancelled:
            self.cancelled = reason
            self._cancelled_at = time.monotonic()
        context = self._context
        if context is not None:
            # On a thread of its own: what a profile does then must not delay a renewal.
            threading.Thread(target=context.cancel, name="cancel", daemon=True).start()

    def enforce_deadline(self) -> None:
        """Cancel an attempt that is over its time."""
        if time.monotonic() > self.deadline and not self.cancelled and not self.has_output:
            self.cancel("timeout")

    @property
    def is_protected(self) -> bool:
        """True if an effect of its stage says `protected`: its seat takes nothing else while it runs, and the
        owner's pause waits for it.
        """
        return any(effect.get("protected") is True for op in self.step.ops for effect in op.effects)

    @property
    def is_stuck(self) -> bool:
        """True if the attempt goes on though it was cancelled GRACE_SECONDS ago."""
        return self._cancelled_at is not None and time.monotonic() > self._cancelled_at + GRACE_SECONDS

    # -- the stream

    def _extend_deadline(self) -> None:
        """Give an operation without a timeout of its own another GRIDQ_STAGE_TIMEOUT: its stream flows."""
        until = time.monotonic() + self._config.stage_timeout
        if self.step.ops[self.operation].timeout is None and until > self.deadline:
            self._ends_with_job = until > self._job_deadline
            self.deadline = min(until, self._job_deadline)
            if self._context is not None:
                self._context.deadline = self.deadline

    def _emit(self, *pieces: Json) -> None:
        self._extend_deadline()
        limit = self._config.max_value
        encoded = [values.encode(piece, limit=limit, path=self.path).decode() for piece in pieces]
        if not self.emitted:
            self._on_first_piece()
        if not self.emitted and self._context is not None:
            self._stream.dropped = tuple(self._context.dropped_fields)
        self.emitted += len(encoded)
        self._piece_writer.add(self._stream, self.path, encoded)

    @property
    def lacks_pieces(self) -> bool:
        """True if pieces of the answer will never be in the job's stream: its lease lapsed before."""
        return self._stream.is_closed and self._stream.written < self.emitted

    def finish_stream(self) -> None:
        """Wait until what was streamed is in the job's stream. RedisError: the server cannot be reached."""
        self._piece_writer.finish(self._stream)
