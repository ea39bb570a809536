"""The agents of a chaos run: they submit, resubmit and cancel jobs, and retry until the run ends."""

from __future__ import annotations

import heapq
import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from gridq.app import configure
from gridq.client import BaseClient, BrokerClient, GatewayClient
from gridq.config.settings import Settings
from gridq.errors import BrokerError, GridError, JobNotFound, WaitTimeout
from gridq.jobs.record import make_job_id
from gridq.protocol.models import Json
from gridq.store.connection import translate_errors
from gridq.submission.inbox import Inbox
from tests.chaos.plan import Job, Plan

log = logging.getLogger(__name__)

RETRY_SECONDS = 0.3
"""Seconds until a call that did not reach the server is repeated."""
WAITING_THREADS = 8
"""Threads that wait at gateways for the results of jobs."""
WAIT_SECONDS = 2.0
"""Duration of one such wait."""


@dataclass
class SubmittedJob:
    """The results of the calls for one job, as its agent saw them."""

    job: Job
    accepted: bool = False
    begun: float = 0.0
    """The time of the first try to submit it, by the monotonic clock."""
    refused: str = ""
    """The code of the error that refused it."""
    answer: tuple[Json, GridError | None] | None = None
    """The value or error that a gateway returned to a waiting client."""
    wrong: list[str] = field(default_factory=list)
    """Errors that no call should return."""

    def record_error(self, what: str, error: GridError) -> None:
        """Record the final error of a call, such as `submit`. It refuses the job if that is an allowed error
        of a job that was not accepted before; else it is wrong.
        """
        if what == "submit" and error.code in self.job.allowed_errors and not self.accepted:
            self.refused = error.code
        else:
            self.wrong.append(f"{what} of {self.job.id}: {error}")


class Agents:
    """Threads that make the calls of a plan at their times, through one connection that may fail and through
    the gateways at `urls`.
    """

    def __init__(self, plan: Plan, config: Settings, urls: str, *, threads: int = 4) -> None:
        from gridq.tasks import run_graph

        configure(config)
        self.submitted = {job.id: SubmittedJob(job) for job in plan.jobs}
        self._client = BrokerClient(config=config)
        self._gateways = GatewayClient(urls, config=config)
        self._run_graph = run_graph
        self._inbox = Inbox(self._client.scripts, config)
        self._calls: list[tuple[float, int, Callable[[], None]]] = []
        self._number = itertools.count()
        self._lock = threading.Condition()
        self._stopping = False
        self._open = 0
        self._awaited: queue.SimpleQueue[SubmittedJob | None] = queue.SimpleQueue()
        self._awaited_count = 0
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(threads)]
        self._threads += [
            threading.Thread(target=self._read_results, daemon=True) for _ in range(WAITING_THREADS)
        ]
        self.began = 0.0
        self._plan = plan

    def start(self) -> None:
        """Start. The plan's times count from now."""
        self.began = time.monotonic()
        for job in self._plan.jobs:
            self._schedule(self.began + job.at, lambda job=job: self._submit_first(job))  # type: ignore[misc]
        for thread in self._threads:
            thread.start()

    @property
    def busy(self) -> int:
        """Number of calls that are pending or running."""
        return len(self._calls) + self._open + self._awaited_count

    def stop(self) -> None:
        """Stop making calls."""
        with self._lock:
            self._stopping = True
            self._calls.clear()
            self._lock.notify_all()
        for _ in range(WAITING_THREADS):
            self._awaited.put(None)
        for thread in self._threads:
            thread.join(30)
        self._client.close()
        self._gateways.close()

    def _schedule(self, when: float, call: Callable[[], None]) -> None:
        with self._lock:
            heapq.heappush(self._calls, (when, next(self._number), call))
            self._lock.notify()

    def _work(self) -> None:
        while True:
            with self._lock:
                while not self._stopping and (not self._calls or self._calls[0][0] > time.monotonic()):
                    self._lock.wait(0.1)
                if self._stopping:
                    return
                call = heapq.heappop(self._calls)[2]
                self._open += 1
            try:
                call()
            finally:
                with self._lock:
                    self._open -= 1

    def _submit_first(self, job: Job) -> None:
        self.submitted[job.id].begun = time.monotonic()
        self._submit(job)
        now = time.monotonic()
        if job.cancel is not None:
            self._schedule(now + job.cancel, lambda: self._cancel(job))
        if job.again is not None:
            self._schedule(now + job.again, lambda: self._submit(job))

    def _submit(self, job: Job) -> None:
        """Submit the job until the server has accepted or refused it."""
        state = self.submitted[job.id]
        keyed = state.accepted and "idempotency_key" in job.options

        def call() -> None:
            # Once the key is known to exist, with a new id: the key must lead to the same job.
            name = make_job_id() if keyed else job.id
            graph, value = job.made.graph, job.made.input
            if job.channel == "celery":
                given = self._inbox.enqueue(name, graph, value, celery=True, **job.options)
            else:
                given = self._client_of(job).submit(graph, value, job=name, **job.options)
            if job.channel == "gateway" and not state.accepted:
                with self._lock:
                    self._awaited_count += 1
                self._awaited.put(state)
            state.accepted = True
            if given != job.id:
                state.wrong.append(f"{job.id} was submitted again by its key, which gave {given}")
            if job.channel == "celery":
                with translate_errors():
                    self._run_graph.send_wake_up(given, {})

        self._retry_until_answered(state, call, "submit")

    def _cancel(self, job: Job) -> None:
        state = self.submitted[job.id]

        def call() -> None:
            try:
                self._client_of(job).cancel(job.id)
            except JobNotFound:
                if state.accepted:
                    raise

        self._retry_until_answered(state, call, "cancel")

    def _client_of(self, job: Job) -> BaseClient:
        return self._gateways if job.channel == "gateway" else self._client

    def _read_results(self) -> None:
        """Wait at the gateways for the results of jobs."""
        while (state := self._awaited.get()) is not None:
            self._retry_until_answered(state, lambda state=state: self._wait(state), "result")  # type: ignore[misc]
            with self._lock:
                self._awaited_count -= 1

    def _wait(self, state: SubmittedJob) -> None:
        while not self._stopping:
            try:
                state.answer = self._gateways.result(state.job.id, WAIT_SECONDS), None
                return
            except WaitTimeout:
                continue
            except BrokerError:
                raise
            except GridError as exc:
                state.answer = None, exc
                return

    def _retry_until_answered(self, state: SubmittedJob, call: Callable[[], None], what: str) -> None:
        while not self._stopping:
            try:
                call()
                return
            except BrokerError as exc:
                log.info("%s of %s: %s", what, state.job.id, exc)
                time.sleep(RETRY_SECONDS)
            except GridError as exc:
                state.record_error(what, exc)
                return
            except Exception as exc:
                log.exception("%s of %s", what, state.job.id)
                state.wrong.append(f"{what} of {state.job.id}: {type(exc).__name__}: {exc}")
                return
