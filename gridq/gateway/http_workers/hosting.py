"""The seats of workers that come over HTTP: some gateway serves each, like any seat, and asks the worker.

Every gateway looks each second at who is enrolled and takes over what no other one serves: the server lets
one alone have a seat, and its lease is over three seconds after its gateway died.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import threading
import time
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError

from gridq import stages
from gridq.config.settings import Settings
from gridq.errors import (
    GridError,
    OutputTooLarge,
    SeatInUse,
    SeatRateLimited,
    SeatUnavailable,
    StageError,
)
from gridq.execution.session import Session
from gridq.execution.shutdown import SERVER_SECONDS
from gridq.gateway.http_workers import enrolment
from gridq.gateway.http_workers.enrolment import EnrolledWorker, describe_capability
from gridq.profiles.profile import StageContext
from gridq.protocol import queue_names
from gridq.protocol.models import Advertisement, Json, SeatTerms, StageCall, Usage
from gridq.seats import registry
from gridq.stages.coroutines import run_coroutine
from gridq.stages.http import parse_retry_after
from gridq.store.connection import connect, hurry
from gridq.store.scripts import Scripts

if TYPE_CHECKING:
    import httpx

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0
"""Seconds between two looks at who is enrolled, and between two looks of an idle slot that heard no wake-up."""

CONCURRENCY = 4
"""Stages that one worker is given at once: its protocol has no word for it."""

CONNECT_TIMEOUT_SECONDS = 5.0
"""Seconds within which a worker must take the connection."""

MAX_REASON_CHARS = 500
"""Characters that are kept of what a worker says went wrong."""


class WorkerHost:
    """The workers that this gateway serves, between `start` and `stop`."""

    def __init__(self, config: Settings) -> None:
        self.config = config
        self.host = f"gateway-{secrets.token_hex(6)}"
        self.client = connect(config.broker_url.get_secret_value(), name="gridq-gateway-seats")
        self.scripts = Scripts(self.client, config)
        self._seats: dict[str, HostedSeat] = {}
        self._retiring: dict[str, threading.Thread] = {}
        self._stopping = threading.Event()
        self._reconcile_now = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="hosting", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def reconcile_soon(self) -> None:
        """Look at once: somebody came or went."""
        self._reconcile_now.set()

    def begin_stop(self) -> None:
        """Begin to stop, as `stop` does. Returns at once."""
        self._stopping.set()
        self._reconcile_now.set()

    def stop(self) -> None:
        """Serve nobody any more: what runs may finish within GRIDQ_DRAIN, another gateway takes over."""
        self.begin_stop()
        self._thread.join()
        self.client.close()

    def _loop(self) -> None:
        away = False
        while not self._stopping.is_set():
            try:
                self._reconcile()
                away = False
            except (RedisError, GridError) as exc:
                if not away:
                    log.warning("who is enrolled cannot be read: %s", exc)
                away = True
            self._reconcile_now.wait(POLL_SECONDS)
            self._reconcile_now.clear()
        hurry(self.client, SERVER_SECONDS)
        for name, seat in self._seats.items():
            self._retiring[name] = seat.retire()
        for thread in self._retiring.values():
            thread.join()

    def _reconcile(self) -> None:
        worker = enrolment.read_workers(self.client, self.scripts.keys)
        for name, seat in list(self._seats.items()):
            now = worker.get(name)
            if now is None or now.text != seat.worker.text or seat.lost:
                del self._seats[name]
                self._retiring[name] = seat.retire()
        for name, thread in list(self._retiring.items()):
            if not thread.is_alive():
                del self._retiring[name]
        for name, now in worker.items():
            # One that offers something else goes on when what it runs has ended: else that would be lost.
            if name not in self._seats and name not in self._retiring and now.queues:
                seat = HostedSeat(self, now)
                try:
                    seat.start()
                except SeatInUse:  # another gateway serves it
                    continue
                self._seats[name] = seat
        for seat in self._seats.values():
            seat.advertise()


class HostedSeat:
    """One worker's seat, served by this gateway."""

    def __init__(self, hosting: WorkerHost, worker: EnrolledWorker) -> None:
        self.worker = worker
        self.scripts, self.config, self.client = hosting.scripts, hosting.config, hosting.client
        self.session = Session(
            hosting.scripts,
            hosting.config,
            seat=worker.seat,
            host=hosting.host,
            concurrency=CONCURRENCY,
            queues=worker.queues,
            runner=self.run,
            worker=f"{worker.about.worker_id}@{registry.HTTP_MACHINE}",
            terms=SeatTerms(limits=worker.limits, per_minute=worker.per_minute),
        )
        self._since = time.time()
        self._advertised = 0.0
        self._stopping = threading.Event()
        self._concurrency = [
            threading.Thread(target=self._slot, name=worker.seat, daemon=True) for _ in range(CONCURRENCY)
        ]

    @property
    def lost(self) -> bool:
        """Whether another gateway has taken the seat over."""
        return self.session.draining

    def start(self) -> None:
        """Go live. SeatInUse: another gateway serves the seat."""
        self.session.register()  # first: who may not serve it says nothing of it
        self.advertise()
        self.session.start()
        for slot in self._concurrency:
            slot.start()

    def advertise(self) -> None:
        """Say what the seat is, once a heartbeat."""
        if time.monotonic() - self._advertised < self.config.heartbeat:
            return
        about = self.worker.about
        reply = Advertisement(
            seat=self.worker.seat,
            machine=registry.HTTP_MACHINE,
            worker=self.session.worker,
            incarnation=self.session.incarnation,
            kind="llm",
            concurrency=CONCURRENCY,
            queues=self.worker.queues,
            capability=describe_capability(about),
            version=about.noether_version,
            started_at=self._since,
        )
        registry.advertise(self.client, self.scripts.keys, reply, self.config.heartbeat)
        self._advertised = time.monotonic()

    def retire(self) -> threading.Thread:
        """Stop, on a thread of its own: what runs keeps nobody else waiting."""
        self._stopping.set()
        thread = threading.Thread(target=self.stop, name=f"retire {self.worker.seat}", daemon=True)
        thread.start()
        return thread

    def stop(self) -> None:
        """Take nothing more, let what runs finish within GRIDQ_DRAIN, and leave."""
        self._stopping.set()
        lost = self.lost  # then the advertisement is another gateway's
        self.session.stop()
        try:
            if not lost:
                registry.withdraw(self.client, self.scripts.keys, self.worker.seat)
        except RedisError as exc:  # it lapses
            log.warning("the advertisement of %s could not be taken back: %s", self.worker.seat, exc)

    def _slot(self) -> None:
        """Work, and wait for a wake-up on the seat's own queue; what is rung elsewhere is found by looking."""
        wake_ups = self.scripts.keys.queue(queue_names.make_seat_queue(self.worker.seat))
        while not self._stopping.is_set():
            try:
                self.session.work()
                self.client.blpop([wake_ups], timeout=POLL_SECONDS)
            except RedisError:  # the renewal says so
                self._stopping.wait(POLL_SECONDS)
            except (
                Exception
            ) as exc:  # a seat that is advertised keeps its slots; what it says may hold a prompt
                told = exc if isinstance(exc, GridError) else type(exc).__name__
                log.warning("a slot of %s could not go on: %s", self.worker.seat, told)
                self._stopping.wait(POLL_SECONDS)

    def run(self, stage: StageCall, value: Json, context: StageContext) -> Json:
        """Have the worker run one stage: a graph of that stage alone is posted to its `/execute`.

        StageError: the stage's own fault, as the worker says. SeatUnavailable, SeatRateLimited: the worker's.
        """
        if stage.implementation.startswith(("builtin:", "python:")):
            return stages.run_builtin(stage, value, context)
        if stage.implementation == "llm:api_request":
            raise SeatUnavailable(
                f"The worker {self.worker.about.worker_id} runs stages of graphs, no request of a model API",
                {"reason": "it came by POST /workers"},
            )
        graph = {"description": stage.name, "version": "0.1.0", "root": {"op": "Stage", "id": stage.id}}
        request_body = {"job_id": context.job, "graph": graph, "input": _with_one_model(value, stage.queue)}
        try:
            reply = run_coroutine(self._post(json.dumps(request_body, separators=(",", ":")).encode()), context)
        except StageError as exc:
            exc.details.setdefault("path", stage.path)
            exc.details.setdefault("stage", stage.name)
            raise
        context.report(Usage(micro_dollars=_parse_cents(reply.get("spent_cents")) * 10_000))
        reason = str(reply.get("error") or "")[:MAX_REASON_CHARS]
        if reply.get("status") == "ok":
            return reply.get("output")
        if reply.get("status") == "failed":
            raise StageError(
                f"The stage {stage.name} failed: {reason}",
                {"path": stage.path, "stage": stage.name, "reason": reason},
            )
        raise self._unavailable(reason or f"it answered with the status {reply.get('status')!r:.40}")

    async def _post(self, body: bytes) -> dict[str, Json]:
        """What the worker answers to an ExecuteRequest."""
        import httpx

        timeout = httpx.Timeout(None, connect=CONNECT_TIMEOUT_SECONDS)  # the stage's own time is looked at elsewhere
        headers = {"content-type": "application/json", "accept": "application/json"}
        url = self.worker.about.url.rstrip("/") + "/execute"
        try:
            async with (
                httpx.AsyncClient(timeout=timeout, trust_env=False, follow_redirects=False) as client,
                client.stream("POST", url, content=body, headers=headers) as answer,
            ):
                text = await self._read(answer)
        except (httpx.HTTPError, OSError) as exc:
            raise self._unavailable(f"{type(exc).__name__}: {exc}"[:MAX_REASON_CHARS]) from None
        if answer.status_code == 429:
            wait = parse_retry_after(answer.headers.get("retry-after", ""))
            raise SeatRateLimited(
                f"The worker {self.worker.about.worker_id} is asked too often",
                {} if wait is None else {"retry_after": wait},
            )
        if answer.status_code in (400, 413, 422):
            reason = text[:MAX_REASON_CHARS].decode("utf-8", "replace")
            raise StageError("The worker refused the stage", {"reason": reason, "status": answer.status_code})
        if answer.status_code != 200:
            raise self._unavailable(f"HTTP {answer.status_code}")
        try:
            reply = json.loads(text)
        except (ValueError, RecursionError):
            reply = None
        if not isinstance(reply, dict) or "status" not in reply:
            raise self._unavailable("its answer is none of a worker")
        return reply

    async def _read(self, answer: httpx.Response) -> bytes:
        parts, size = [], 0
        async for part in answer.aiter_bytes():
            parts.append(part)
            size += len(part)
            if size > self.config.max_value:
                raise OutputTooLarge(
                    "The worker's answer is too large", {"expected": f"at most {self.config.max_value} bytes"}
                )
            await asyncio.sleep(0)
        return b"".join(parts)

    def _unavailable(self, reason: str) -> SeatUnavailable:
        return SeatUnavailable(
            f"The worker {self.worker.about.worker_id} cannot be asked",
            {"reason": reason, "endpoint": self.worker.about.url},
        )


def _with_one_model(value: Json, queue: str) -> Json:
    """A stage's input, where it names several models with the one from whose queue the stage was taken."""
    models = value.get("model") if isinstance(value, dict) else None
    if not isinstance(models, list):
        return value
    names = [each.get("model") if isinstance(each, dict) else each for each in models]
    kind = queue_names.get_kind(queue)
    taken = [
        name
        for name in names
        if isinstance(name, str) and queue_names.make_queue_name(kind, name.strip()) == queue
    ]
    return {**value, "model": taken[0]} if taken else value


def _parse_cents(cents: Any) -> int:
    """The cents that a worker says it spent; 0 where it says nothing that counts."""
    return cents if isinstance(cents, int) and not isinstance(cents, bool) and 0 <= cents <= 10**11 else 0
