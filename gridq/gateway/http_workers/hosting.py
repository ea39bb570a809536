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
from gridq.execution.shutdown import HEARS
from gridq.gateway.http_workers import enrolment
from gridq.gateway.http_workers.enrolment import Known, capability_of
from gridq.profiles.profile import StageContext
from gridq.protocol import queue_names
from gridq.protocol.models import Advertisement, Json, SeatTerms, StageCall, Usage
from gridq.seats import registry
from gridq.stages.coroutines import drive
from gridq.stages.http import retry_after
from gridq.store.connection import connect, hurry
from gridq.store.scripts import Scripts

if TYPE_CHECKING:
    import httpx

log = logging.getLogger(__name__)

LOOK = 1.0
"""Seconds between two looks at who is enrolled, and between two looks of an idle slot that heard no wake-up."""

CONCURRENCY = 4
"""Stages that one worker is given at once: its protocol has no word for it."""

CONNECT = 5.0
"""Seconds within which a worker must take the connection."""

REASON = 500
"""Characters that are kept of what a worker says went wrong."""


class Hosting:
    """The workers that this gateway serves, between `start` and `stop`."""

    def __init__(self, config: Settings) -> None:
        self.config = config
        self.host = f"gateway-{secrets.token_hex(6)}"
        self.client = connect(config.broker_url.get_secret_value(), name="gridq-gateway-seats")
        self.scripts = Scripts(self.client, config)
        self._served: dict[str, Served] = {}
        self._leaving: dict[str, threading.Thread] = {}
        self._ends = threading.Event()
        self._soon = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="hosting", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def look_soon(self) -> None:
        """Look at once: somebody came or went."""
        self._soon.set()

    def leave(self) -> None:
        """Begin to stop, as `stop` does. Returns at once."""
        self._ends.set()
        self._soon.set()

    def stop(self) -> None:
        """Serve nobody any more: what runs may finish within GRIDQ_DRAIN, another gateway takes over."""
        self.leave()
        self._thread.join()
        self.client.close()

    def _loop(self) -> None:
        away = False
        while not self._ends.is_set():
            try:
                self._look()
                away = False
            except (RedisError, GridError) as exc:
                if not away:
                    log.warning("who is enrolled cannot be read: %s", exc)
                away = True
            self._soon.wait(LOOK)
            self._soon.clear()
        hurry(self.client, HEARS)
        for name, served in self._served.items():
            self._leaving[name] = served.retire()
        for thread in self._leaving.values():
            thread.join()

    def _look(self) -> None:
        known = enrolment.known(self.client, self.scripts.keys)
        for name, served in list(self._served.items()):
            now = known.get(name)
            if now is None or now.text != served.known.text or served.lost:
                del self._served[name]
                self._leaving[name] = served.retire()
        for name, thread in list(self._leaving.items()):
            if not thread.is_alive():
                del self._leaving[name]
        for name, now in known.items():
            # One that offers something else goes on when what it runs has ended: else that would be lost.
            if name not in self._served and name not in self._leaving and now.queues:
                served = Served(self, now)
                try:
                    served.start()
                except SeatInUse:  # another gateway serves it
                    continue
                self._served[name] = served
        for served in self._served.values():
            served.advertise()


class Served:
    """One worker's seat, served by this gateway."""

    def __init__(self, hosting: Hosting, known: Known) -> None:
        self.known = known
        self.scripts, self.config, self.client = hosting.scripts, hosting.config, hosting.client
        self.session = Session(
            hosting.scripts,
            hosting.config,
            seat=known.seat,
            host=hosting.host,
            concurrency=CONCURRENCY,
            queues=known.queues,
            runner=self.run,
            worker=f"{known.about.worker_id}@{registry.HTTP_MACHINE}",
            terms=SeatTerms(limits=known.limits, per_minute=known.per_minute),
        )
        self._since = time.time()
        self._advertised = 0.0
        self._ends = threading.Event()
        self._concurrency = [
            threading.Thread(target=self._slot, name=known.seat, daemon=True) for _ in range(CONCURRENCY)
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
        about = self.known.about
        said = Advertisement(
            seat=self.known.seat,
            machine=registry.HTTP_MACHINE,
            worker=self.session.worker,
            incarnation=self.session.incarnation,
            kind="llm",
            concurrency=CONCURRENCY,
            queues=self.known.queues,
            capability=capability_of(about),
            version=about.noether_version,
            started_at=self._since,
        )
        registry.advertise(self.client, self.scripts.keys, said, self.config.heartbeat)
        self._advertised = time.monotonic()

    def retire(self) -> threading.Thread:
        """Stop, on a thread of its own: what runs keeps nobody else waiting."""
        self._ends.set()
        thread = threading.Thread(target=self.stop, name=f"retire {self.known.seat}", daemon=True)
        thread.start()
        return thread

    def stop(self) -> None:
        """Take nothing more, let what runs finish within GRIDQ_DRAIN, and leave."""
        self._ends.set()
        lost = self.lost  # then the advertisement is another gateway's
        self.session.stop()
        try:
            if not lost:
                registry.withdraw(self.client, self.scripts.keys, self.known.seat)
        except RedisError as exc:  # it lapses
            log.warning("the advertisement of %s could not be taken back: %s", self.known.seat, exc)

    def _slot(self) -> None:
        """Work, and wait for a wake-up on the seat's own queue; what is rung elsewhere is found by looking."""
        wake_ups = self.scripts.keys.queue(queue_names.seat_queue(self.known.seat))
        while not self._ends.is_set():
            try:
                self.session.work()
                self.client.blpop([wake_ups], timeout=LOOK)
            except RedisError:  # the renewal says so
                self._ends.wait(LOOK)
            except (
                Exception
            ) as exc:  # a seat that is advertised keeps its slots; what it says may hold a prompt
                told = exc if isinstance(exc, GridError) else type(exc).__name__
                log.warning("a slot of %s could not go on: %s", self.known.seat, told)
                self._ends.wait(LOOK)

    def run(self, stage: StageCall, value: Json, context: StageContext) -> Json:
        """Have the worker run one stage: a graph of that stage alone is posted to its `/execute`.

        StageError: the stage's own fault, as the worker says. SeatUnavailable, SeatRateLimited: the worker's.
        """
        if stage.implementation.startswith(("builtin:", "python:")):
            return stages.run_builtin(stage, value, context)
        if stage.implementation == "llm:api_request":
            raise SeatUnavailable(
                f"The worker {self.known.about.worker_id} runs stages of graphs, no request of a model API",
                {"reason": "it came by POST /workers"},
            )
        graph = {"description": stage.name, "version": "0.1.0", "root": {"op": "Stage", "id": stage.id}}
        asked = {"job_id": context.job, "graph": graph, "input": _of_one_model(value, stage.queue)}
        try:
            said = drive(self._post(json.dumps(asked, separators=(",", ":")).encode()), context)
        except StageError as exc:
            exc.details.setdefault("path", stage.path)
            exc.details.setdefault("stage", stage.name)
            raise
        context.report(Usage(micro_dollars=_count(said.get("spent_cents")) * 10_000))
        reason = str(said.get("error") or "")[:REASON]
        if said.get("status") == "ok":
            return said.get("output")
        if said.get("status") == "failed":
            raise StageError(
                f"The stage {stage.name} failed: {reason}",
                {"path": stage.path, "stage": stage.name, "reason": reason},
            )
        raise self._fault(reason or f"it answered with the status {said.get('status')!r:.40}")

    async def _post(self, body: bytes) -> dict[str, Json]:
        """What the worker answers to an ExecuteRequest."""
        import httpx

        timeout = httpx.Timeout(None, connect=CONNECT)  # the stage's own time is looked at elsewhere
        headers = {"content-type": "application/json", "accept": "application/json"}
        url = self.known.about.url.rstrip("/") + "/execute"
        try:
            async with (
                httpx.AsyncClient(timeout=timeout, trust_env=False, follow_redirects=False) as client,
                client.stream("POST", url, content=body, headers=headers) as answer,
            ):
                text = await self._read(answer)
        except (httpx.HTTPError, OSError) as exc:
            raise self._fault(f"{type(exc).__name__}: {exc}"[:REASON]) from None
        if answer.status_code == 429:
            wait = retry_after(answer.headers.get("retry-after", ""))
            raise SeatRateLimited(
                f"The worker {self.known.about.worker_id} is asked too often",
                {} if wait is None else {"retry_after": wait},
            )
        if answer.status_code in (400, 413, 422):
            reason = text[:REASON].decode("utf-8", "replace")
            raise StageError("The worker refused the stage", {"reason": reason, "status": answer.status_code})
        if answer.status_code != 200:
            raise self._fault(f"HTTP {answer.status_code}")
        try:
            said = json.loads(text)
        except (ValueError, RecursionError):
            said = None
        if not isinstance(said, dict) or "status" not in said:
            raise self._fault("its answer is none of a worker")
        return said

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

    def _fault(self, reason: str) -> SeatUnavailable:
        return SeatUnavailable(
            f"The worker {self.known.about.worker_id} cannot be asked",
            {"reason": reason, "endpoint": self.known.about.url},
        )


def _of_one_model(value: Json, queue: str) -> Json:
    """A stage's input, where it names several models with the one from whose queue the stage was taken."""
    models = value.get("model") if isinstance(value, dict) else None
    if not isinstance(models, list):
        return value
    names = [each.get("model") if isinstance(each, dict) else each for each in models]
    kind = queue_names.kind_of(queue)
    taken = [
        name
        for name in names
        if isinstance(name, str) and queue_names.capability(kind, name.strip()) == queue
    ]
    return {**value, "model": taken[0]} if taken else value


def _count(cents: Any) -> int:
    """The cents that a worker says it spent; 0 where it says nothing that counts."""
    return cents if isinstance(cents, int) and not isinstance(cents, bool) and 0 <= cents <= 10**11 else 0
