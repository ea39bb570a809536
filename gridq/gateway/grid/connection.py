"""The way from an HTTP request into the grid and back: what every route of one gateway shares."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, ParamSpec, TypeVar

import redis.asyncio
from redis.exceptions import RedisError

from gridq.client.broker_client import BrokerClient
from gridq.config.settings import Settings
from gridq.errors import BrokerError, ValueGone
from gridq.execution.shutdown import HEARS
from gridq.gateway.grid.admission_wait import Holding
from gridq.gateway.grid.orphaned_jobs import Unwanted
from gridq.gateway.options import GatewayOptions
from gridq.gateway.streaming.follower import Follower
from gridq.gateway.streaming.pipe import Pipe
from gridq.gateway.streaming.relay import CALM, Relay
from gridq.jobs.idempotency import find_existing_job, make_fingerprint
from gridq.jobs.record import End, JobOptions, check_job_id, make_job_id
from gridq.jobs.waiting import BLOCK_SECONDS, build_not_found_error
from gridq.protocol.models import Row
from gridq.protocol.money import total
from gridq.store import values
from gridq.store.connection import CONNECT_TIMEOUT, connect_async, hurry, translated
from gridq.submission.admission import Admission
from gridq.submission.inbox import keep_long
from gridq.views.jobs import read_rows

CONNECTIONS = 32
"""Connections of one gateway's loop, the reader's among them: a thousand jobs that end at once share them."""

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended, with its stored answer or error, and the rows of its stages."""

    end: End
    rows: list[Row]


class Door:
    """One gateway's way into the grid. Made on the loop that uses it, by `Door.open`, and closed there."""

    def __init__(self, config: Settings, options: GatewayOptions) -> None:
        self.config = config
        self.options = options
        self.client = BrokerClient(config=config)
        self.keys = self.client.keys
        self.redis: redis.asyncio.Redis = connect_async(
            self.client.url, name="gridq-gateway", timeout=BLOCK_SECONDS * 2, most=CONNECTIONS
        )
        self.pipe = Pipe(
            connect_async(self.client.url, name="gridq-gateway", timeout=CONNECT_TIMEOUT, retry=False)
        )
        self.relay = Relay(self.redis, self.keys, self.pipe, buffer=options.buffer)
        self.holding = Holding(self.redis, self.keys, options.hold)
        self.unwanted = Unwanted(self.cancel)
        self._admission: Admission | None = None
        self.closing = False
        """Whether the gateway stops: who is cut off then comes back at another one."""
        self._threads = ThreadPoolExecutor(options.threads, thread_name_prefix="gridq-gateway")

    @classmethod
    async def open(cls, config: Settings, options: GatewayOptions) -> Door:
        """A door that reads. A server that is away is waited for."""
        door = cls(config, options)
        door.relay.start()
        door.holding.start()
        return door

    async def close(self) -> None:
        """End all reading and every connection."""
        self.closing = True
        for client in (self.client.redis, self.client.scripts.client):
            hurry(client, HEARS)
        await self.holding.close()
        await self.relay.close()
        await self.pipe.close()
        await self.unwanted.close()
        await self.redis.aclose()
        await asyncio.get_running_loop().run_in_executor(None, self._threads.shutdown)
        self.client.close()

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """`function` on one of the door's own threads; faults of the server come as BrokerError."""
        return await self._call(partial(function, *args, **kwargs))

    def _call(self, function: Callable[[], T]) -> asyncio.Future[T]:
        def translating() -> T:
            with translated(self.client.url):
                return function()

        return asyncio.get_running_loop().run_in_executor(self._threads, translating)

    async def submit(
        self,
        graph: bytes,
        value: bytes,
        about: JobOptions,
        *,
        key: str = "",
        job: str | None = None,
        follower: Follower | None = None,
        detached: bool = False,
    ) -> str:
        """Admit a graph's JSON text with its input's; the job's id, or that of the job which has its
        idempotency key already. Where nobody serves it just now it is held for a while first
        (`gridq.gateway.grid.admission_wait`).

        `follower` is one of the relay's that follows `job` already, so that no time is lost. The errors are
        those of `gridq.Client.submit`; nothing is queued then. Where the request is given up meanwhile, or is
        told that the server is away, what was admitted all the same is cancelled, unless it is `detached`.
        """
        given = check_job_id(job) if job is not None else make_job_id()
        fresh = job is None or follower is not None

        if follower is not None and await self._admit_at_once(
            given, graph, value, about, key, detached=detached
        ):
            follower.watch(CALM)
            return given

        async def attempt() -> str:
            admitting = self._call(partial(self._admit, graph, value, about, key, given, fresh=fresh))
            try:
                return await asyncio.shield(admitting)
            except asyncio.CancelledError:
                if not detached:
                    admitting.add_done_callback(partial(self._undo, given))
                raise

        limits = [limit for limit in (about.queue_timeout, about.deadline) if limit is not None]
        try:
            admitted = await self.holding.admit(attempt, min(limits, default=None))
        except BrokerError:
            if not detached:
                self.unwanted.add(given)
            raise
        if follower is not None and admitted == follower.job:
            follower.watch(CALM)
        return admitted

    async def _admit_at_once(
        self, job: str, graph: bytes, value: bytes, about: JobOptions, key: str, *, detached: bool
    ) -> bool:
        """Admit a new job by one question of the loop's own, where nothing is to be found out first; False
        where it must go the whole way, which says why where it is refused.
        """
        admission = self._admission
        arguments = None if admission is None else admission.at_once(job, graph, value, about, key)
        if admission is None or arguments is None:
            return False
        try:
            asked = self.pipe.send(("EVALSHA", self.client.scripts.shas["admit"], 0, *arguments))
        except RedisError:  # the gateway stops
            return False
        try:
            await asyncio.shield(asked.answered)
        except RedisError:  # perhaps it was done all the same: the whole way finds it then
            return False
        except asyncio.CancelledError:
            if not detached:
                asked.answered.add_done_callback(partial(self._undo, job))
            raise
        reply = asked.replies[0]
        if isinstance(reply, RedisError) or reply[0] != b"ok":
            return False
        admission.written(job, graph, about, [word.decode() for word in reply])
        return True

    def _admit(
        self, graph: bytes, value: bytes, about: JobOptions, key: str, job: str, *, fresh: bool
    ) -> str:
        admission = self._admission = self.client.admission
        body = make_fingerprint(graph, value, about, fresh=fresh)
        scripts = self.client.scripts
        known = find_existing_job(scripts.client, self.keys, body, verified=bool(key)) if body.key else None
        if known is not None:
            return known
        split = admission.split(graph)
        value = keep_long(scripts, job, value, about)
        return admission.admit(job, split, value, about, key=key, body=body)

    def _undo(self, job: str, admitting: asyncio.Future[Any]) -> None:
        """Cancel a job whose client went away while it was being admitted. After a lost reply it may have
        been admitted all the same.
        """
        if admitting.cancelled():
            return
        fault = admitting.exception()
        if fault is None or isinstance(fault, RedisError | BrokerError):
            self.unwanted.add(job)

    async def outcome(self, job: str) -> Outcome:
        """How a job that has ended did so. JobNotFound: its result has expired."""
        commands = ("LINDEX", self.keys("result", job), 0), ("LRANGE", self.keys("rows", job), 0, -1)
        try:
            end, rows = await self.pipe.ask(*commands)
        except RedisError:
            with translated(self.client.url):
                both = self.redis.pipeline(transaction=False)
                for command in commands:
                    both.execute_command(*command)
                end, rows = await both.execute()
        if end is None:
            raise build_not_found_error(job)
        return Outcome(End.read(end), read_rows(rows))

    async def answer(self, job: str, end: End) -> bytes:
        """The answer's JSON text; raises the error that ended the job, ValueGone."""
        error = end.error()
        if error is not None:
            raise error
        if not values.is_link(end.payload):
            return end.payload
        with translated(self.client.url):
            found: Any = await self.redis.get(self.keys("value", end.payload[1:].decode()))
        if found is None:
            raise ValueGone(
                "A stored value is gone", {"path": job, "reason": "its job has ended, or its time is over"}
            )
        return bytes(found)

    async def agent_of(self, job: str) -> str:
        """Whose job it is, for `Caller.may_see`. JobNotFound."""
        with translated(self.client.url):
            three = self.redis.pipeline(transaction=False)
            for place in ("job", "submitted", "summary"):
                three.hget(self.keys(place, job), "agent")
            found: Any = await three.execute()
        agent = next((name for name in found if name is not None), None)
        if agent is None:
            raise build_not_found_error(job)
        return str(agent.decode())

    async def cancel(self, job: str) -> bool:
        """Cancel a job wherever it stands; False where it had ended already. JobNotFound."""
        return await self.call(self.client.cancel, job)


def cost_cents(rows: list[Row]) -> float | None:
    """What the stages of a job cost together, in cents; None where no price is known for what they used."""
    micro = total(row.micro_dollars for row in rows)
    return None if micro is None else micro / 10_000
