"""Host the seats of workers over HTTP: a gateway serves each like any other seat and posts its stages to
the worker.

Every gateway compares the enrolled workers with those that it hosts once a second, and takes over workers
that no gateway serves. The server grants a seat to one gateway only. If that one dies, its lease ends
within three seconds.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import socket
import threading
import time
from collections.abc import Sequence
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
    SeatUnreachable,
    StageError,
)
from gridq.execution.session import Session
from gridq.execution.shutdown import SERVER_SECONDS
from gridq.gateway.http_workers import enrolment
from gridq.gateway.http_workers.addresses import find_refusal, look_up
from gridq.gateway.http_workers.enrolment import EnrolledWorker, describe_capability
from gridq.gateway.streaming.sse import encode_json
from gridq.profiles.profile import StageContext
from gridq.protocol import queue_names
from gridq.protocol.masking import mask_account
from gridq.protocol.models import Advertisement, Json, SeatTerms, StageCall, Usage
from gridq.seats import registry
from gridq.stages.coroutines import run_coroutine
from gridq.stages.http import parse_retry_after
from gridq.store.connection import connect, shorten_timeouts
from gridq.store.scripts import Scripts

if TYPE_CHECKING:
    import httpx

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0
"""Seconds between two comparisons, and between two polls of an idle slot without a wake-up."""

CONCURRENCY = 4
"""Stages that a worker gets at once, because its protocol does not say how many it can run."""

CONNECT_TIMEOUT_SECONDS = 5.0
"""The time within which a worker must accept the connection."""

MAX_REASON_CHARS = 500
"""Maximum length of a worker's error message; the rest is dropped."""


class WorkerHost:
    """The workers that this gateway hosts, between `start` and `stop`."""

    def __init__(self, config: Settings, networks: Sequence[str] = ()) -> None:
        """Prepare to host. `networks` are GRIDQ_GATEWAY_WORKER_NETWORKS."""
        self.config = config
        self.networks = networks
        self.host = f"gateway-{secrets.token_hex(6)}"
        self.client = connect(config.get_broker_url(), name="gridq-gateway-seats")
        self.scripts = Scripts(self.client, config)
        self._seats: dict[str, HostedSeat] = {}
        self._retiring: dict[str, threading.Thread] = {}
        self._stopping = threading.Event()
        self._reconcile_now = threading.Event()
        self._thread = threading.Thread(target=self._reconcile_forever, name="hosting", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def reconcile_soon(self) -> None:
        """Compare at once, because a worker enrolled or left."""
        self._reconcile_now.set()

    def begin_stop(self) -> None:
        """Begin what `stop` does, and return at once."""
        self._stopping.set()
        self._reconcile_now.set()

    def stop(self) -> None:
        """Stop hosting. Running stages may finish within GRIDQ_DRAIN; another gateway takes the workers
        over.
        """
        self.begin_stop()
        self._thread.join()
        self.client.close()

    def _reconcile_forever(self) -> None:
        away = False
        while not self._stopping.is_set():
            try:
                self._reconcile()
                away = False
            except (RedisError, GridError) as exc:
                if not away:
                    log.warning("cannot read the enrolled workers: %s", exc)
                away = True
            self._reconcile_now.wait(POLL_SECONDS)
            self._reconcile_now.clear()
        shorten_timeouts(self.client, SERVER_SECONDS)
        for name, seat in self._seats.items():
            self._retiring[name] = seat.retire()
        for thread in self._retiring.values():
            thread.join()

    def _reconcile(self) -> None:
        """Retire seats whose worker left or changed its offer, and host workers that no gateway hosts."""
        workers = enrolment.read_workers(self.client, self.scripts.keys)
        for name, seat in list(self._seats.items()):
            worker = workers.get(name)
            if worker is None or worker.text != seat.worker.text or seat.lost:
                del self._seats[name]
                self._retiring[name] = seat.retire()
        for name, thread in list(self._retiring.items()):
            if not thread.is_alive():
                del self._retiring[name]
        for name, worker in workers.items():
            # A worker that changed its offer is hosted again once its running stages have ended.
            if name not in self._seats and name not in self._retiring and worker.queues:
                seat = HostedSeat(self, worker)
                try:
                    seat.start()
                except SeatInUse:  # another gateway hosts it
                    continue
                self._seats[name] = seat
        for seat in self._seats.values():
            seat.advertise()


class HostedSeat:
    """The seat of one worker, served by this gateway."""

    def __init__(self, worker_host: WorkerHost, worker: EnrolledWorker) -> None:
        self.worker = worker
        self._networks = worker_host.networks
        self.scripts, self.config, self.client = worker_host.scripts, worker_host.config, worker_host.client
        self.session = Session(
            worker_host.scripts,
            worker_host.config,
            seat=worker.seat,
            host=worker_host.host,
            concurrency=CONCURRENCY,
            queues=worker.queues,
            runner=self.run,
            worker=f"{worker.advertisement.worker_id}@{registry.HTTP_MACHINE}",
            terms=SeatTerms(limits=worker.limits, requests_per_minute=worker.requests_per_minute),
        )
        self._since = time.time()
        self._advertised = 0.0
        self._stopping = threading.Event()
        self._slots = [
            threading.Thread(target=self._run_slot, name=worker.seat, daemon=True) for _ in range(CONCURRENCY)
        ]

    @property
    def lost(self) -> bool:
        """True if another gateway has taken the seat over."""
        return self.session.draining

    def start(self) -> None:
        self.session.register()  # first: only the owner of the seat may advertise it
        self.advertise()
        self.session.start()
        for slot in self._slots:
            slot.start()

    def advertise(self) -> None:
        """Advertise the seat, at most once a heartbeat."""
        if time.monotonic() - self._advertised < self.config.heartbeat:
            return
        offer = self.worker.advertisement
        advertisement = Advertisement(
            seat=self.worker.seat,
            machine=registry.HTTP_MACHINE,
            worker=self.session.worker,
            incarnation=self.session.incarnation,
            kind=queue_names.LLM,
            concurrency=CONCURRENCY,
            queues=self.worker.queues,
            capability=describe_capability(offer),
            version=offer.noether_version,
            started_at=self._since,
        )
        registry.advertise(self.client, self.scripts.keys, advertisement, self.config.heartbeat)
        self._advertised = time.monotonic()

    def retire(self) -> threading.Thread:
        """Stop on a thread of its own, so that running stages do not delay other seats."""
        self._stopping.set()
        thread = threading.Thread(target=self.stop, name=f"retire {self.worker.seat}", daemon=True)
        thread.start()
        return thread

    def stop(self) -> None:
        """Take no more stages, let running ones finish within GRIDQ_DRAIN, and leave."""
        self._stopping.set()
        lost = self.lost  # the advertisement then belongs to another gateway
        self.session.stop()
        try:
            if not lost:
                registry.withdraw(self.client, self.scripts.keys, self.worker.seat)
        except RedisError as exc:  # it expires by itself
            log.warning("cannot withdraw the advertisement of %s: %s", self.worker.seat, exc)

    def _run_slot(self) -> None:
        """Run stages, then wait for a wake-up on the seat's own queue. Wake-ups on other queues are made up
        for by polling.
        """
        wake_ups = self.scripts.keys.queue(queue_names.make_seat_queue(self.worker.seat))
        while not self._stopping.is_set():
            try:
                self.session.work()
                self.client.blpop([wake_ups], timeout=POLL_SECONDS)
            except RedisError:  # the lease renewal logs it
                self._stopping.wait(POLL_SECONDS)
            except Exception as exc:  # an advertised seat keeps its slots
                # Only the type of an unexpected error: its message may contain a prompt.
                shown = exc if isinstance(exc, GridError) else type(exc).__name__
                log.warning("a slot of %s failed: %s", self.worker.seat, shown)
                self._stopping.wait(POLL_SECONDS)

    def run(self, stage: StageCall, value: Json, context: StageContext) -> Json:
        """Run one stage at the worker: post a graph of this stage alone to its `/execute`.

        Raises StageError if the worker reports that the stage failed, SeatUnavailable and SeatRateLimited
        if the worker cannot run it.
        """
        if stage.implementation.startswith(("builtin:", "python:")):
            return stages.run_builtin(stage, value, context)
        if stage.implementation == "llm:api_request":
            raise SeatUnavailable(
                f"The worker {self.worker.advertisement.worker_id} cannot run requests of a model API",
                {"reason": "workers over HTTP, enrolled by POST /workers, run only stages of graphs"},
            )
        graph = {"description": stage.name, "version": "0.1.0", "root": {"op": "Stage", "id": stage.id}}
        request_body = {"job_id": context.job, "graph": graph, "input": _with_one_model(value, stage.queue)}
        try:
            reply = run_coroutine(self._post(encode_json(request_body)), context)
        except StageError as exc:
            exc.details.setdefault("path", stage.path)
            exc.details.setdefault("stage", stage.name)
            raise
        context.report(Usage(micro_dollars=_parse_cents(reply.get("spent_cents")) * 10_000))
        reason = mask_account(str(reply.get("error") or ""))[:MAX_REASON_CHARS]
        if reply.get("status") == "ok":
            return reply.get("output")
        if reply.get("status") == "failed":
            raise StageError(
                f"The stage {stage.name} failed: {reason}",
                {"path": stage.path, "stage": stage.name, "reason": reason},
            )
        raise self._unavailable(reason or f"unknown status {reply.get('status')!r:.40} in its response")

    async def _post(self, body: bytes) -> dict[str, Json]:
        """Return the worker's response to an ExecuteRequest."""
        import httpx

        url = httpx.URL(self.worker.advertisement.url.rstrip("/") + "/execute")
        timeout = httpx.Timeout(None, connect=CONNECT_TIMEOUT_SECONDS)  # the stage's own timeout applies
        headers = {
            "host": url.netloc.decode("ascii"),
            "content-type": "application/json",
            "accept": "application/json",
        }
        try:
            async with httpx.AsyncClient(timeout=timeout, trust_env=False, follow_redirects=False) as client:
                for address in await self._find_addresses(url):
                    request = client.build_request(
                        "POST",
                        url.copy_with(host=address),
                        content=body,
                        headers=headers,
                        extensions={"sni_hostname": url.host},
                    )
                    try:
                        response = await client.send(request, stream=True)
                        break
                    except (httpx.ConnectError, httpx.ConnectTimeout) as exc:
                        refused = exc  # the name may have other addresses
                else:
                    raise refused
                try:
                    text = await self._read(response)
                finally:
                    await response.aclose()
        except (httpx.ConnectError, httpx.ConnectTimeout, socket.gaierror) as exc:
            unreachable = self._unavailable(f"{type(exc).__name__}: {exc}"[:MAX_REASON_CHARS])
            raise SeatUnreachable(unreachable.message, unreachable.details) from None
        except (httpx.HTTPError, OSError) as exc:
            raise self._unavailable(f"{type(exc).__name__}: {exc}"[:MAX_REASON_CHARS]) from None
        if response.status_code == 429:
            wait = parse_retry_after(response.headers.get("retry-after", ""))
            raise SeatRateLimited(
                f"The worker {self.worker.advertisement.worker_id} has reached its rate limit",
                {} if wait is None else {"retry_after": wait},
            )
        if response.status_code in (400, 413, 422):
            reason = mask_account(text.decode("utf-8", "replace"))[:MAX_REASON_CHARS]
            raise StageError(
                "The worker refused the stage", {"reason": reason, "status": response.status_code}
            )
        if response.status_code != 200:
            raise self._unavailable(f"HTTP {response.status_code}")
        try:
            reply = json.loads(text)
        except (ValueError, RecursionError):
            reply = None
        if not isinstance(reply, dict) or "status" not in reply:
            raise self._unavailable("its response is not that of a worker")
        return reply

    async def _find_addresses(self, url: httpx.URL) -> list[str]:
        """Return the addresses of the worker's host. Raises SeatUnavailable if a worker may not have one of
        them: a name may lead elsewhere than it did when the worker enrolled.
        """
        addresses = await look_up(str(url))
        for address in addresses:
            reason = find_refusal(
                address, self._networks, accepts_loopback=self.worker.advertisement.is_local
            )
            if reason:
                raise self._unavailable(f"its URL leads to {address}, {reason}")
        return addresses

    async def _read(self, response: httpx.Response) -> bytes:
        parts, size = [], 0
        async for part in response.aiter_bytes():
            parts.append(part)
            size += len(part)
            if size > self.config.max_value:
                raise OutputTooLarge(
                    "The worker's response is too large",
                    {"expected": f"at most {self.config.max_value} bytes"},
                )
            await asyncio.sleep(0)
        return b"".join(parts)

    def _unavailable(self, reason: str) -> SeatUnavailable:
        return SeatUnavailable(
            f"The worker {self.worker.advertisement.worker_id} cannot be reached",
            {"reason": reason, "endpoint": self.worker.advertisement.url},
        )


def _with_one_model(value: Json, queue: str) -> Json:
    """Return a stage's input with one model: of several names, that of the queue from which the stage was
    taken.
    """
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
    """Return the cents that a worker reports to have spent, 0 if it reports nothing valid."""
    return cents if isinstance(cents, int) and not isinstance(cents, bool) and 0 <= cents <= 10**11 else 0
