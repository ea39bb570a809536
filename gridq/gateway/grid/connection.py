"""The connection of one gateway to the grid, shared by all routes: submit jobs, wait for them, read how
they ended.
"""

from __future__ import annotations

import asyncio
import json
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
from gridq.execution.shutdown import SERVER_SECONDS
from gridq.gateway.grid.admission_wait import AdmissionWait
from gridq.gateway.grid.orphaned_jobs import OrphanedJobs
from gridq.gateway.http.conversation import ConversationNames
from gridq.gateway.options import GatewayOptions
from gridq.gateway.streaming.follower import Follower
from gridq.gateway.streaming.pipe import Pipe
from gridq.gateway.streaming.relay import ADMITTED_SILENCE_SECONDS, Relay
from gridq.gateway.streaming.resume import BEGINNING, SEQUENCE_NUMBER
from gridq.jobs.record import End, JobOptions, check_job_id, get_deadline_ms, make_job_id
from gridq.jobs.waiting import BLOCK_SECONDS, build_not_found_error
from gridq.protocol.models import HistoryRow, Json
from gridq.protocol.money import sum_costs
from gridq.store import values
from gridq.store.connection import CONNECT_TIMEOUT_SECONDS, connect_async, shorten_timeouts, translate_errors
from gridq.submission.admission import Admission
from gridq.submission.request import INPUT_GRACE_MS, JobRequest
from gridq.submission.seat_wait import limit_wait
from gridq.views.jobs import parse_rows

MAX_CONNECTIONS = 32
"""Maximum number of Redis connections of the event loop, the stream reader's included. Jobs that end at
once share them.
"""

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class EndedJob:
    """An ended job: its stored answer or error, and the rows of its stages."""

    end: End
    rows: list[HistoryRow]


class GridConnection:
    """The connection of one gateway to the grid. Open and close it on the event loop that uses it."""

    def __init__(self, config: Settings, options: GatewayOptions) -> None:
        self.config = config
        self.options = options
        self.client = BrokerClient(config=config)
        self.keys = self.client.keys
        self.redis: redis.asyncio.Redis = connect_async(
            self.client.url, name="gridq-gateway", timeout=BLOCK_SECONDS * 2, max_connections=MAX_CONNECTIONS
        )
        self.pipe = Pipe(
            connect_async(self.client.url, name="gridq-gateway", timeout=CONNECT_TIMEOUT_SECONDS, retry=False)
        )
        self.relay = Relay(self.redis, self.keys, self.pipe, buffer=options.stream_buffer)
        self.admission_wait = AdmissionWait(self.redis, self.keys, config.admission_wait)
        self.orphaned_jobs = OrphanedJobs(self.cancel)
        self.conversations = ConversationNames(self.client.url)
        self._admission: Admission | None = None
        self.closing = False
        """True once the gateway shuts down; clients that it cuts off reconnect to another one."""
        self._threads = ThreadPoolExecutor(options.threads, thread_name_prefix="gridq-gateway")

    @classmethod
    async def open(cls, config: Settings, options: GatewayOptions) -> GridConnection:
        """Return a connection that reads streams and polls seats. Both wait for a server that is away."""
        grid = cls(config, options)
        grid.relay.start()
        grid.admission_wait.start()
        return grid

    async def close(self) -> None:
        """Stop all reading and close every connection."""
        self.closing = True
        for client in (self.client.redis, self.client.scripts.client):
            shorten_timeouts(client, SERVER_SECONDS)
        await self.admission_wait.close()
        await self.relay.close()
        await self.pipe.close()
        await self.orphaned_jobs.close()
        await self.redis.aclose()
        await asyncio.get_running_loop().run_in_executor(None, self._threads.shutdown)
        self.client.close()

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what `function` returns, run on a thread of the pool. Redis errors are raised as
        BrokerError.
        """
        return await self._call(partial(function, *args, **kwargs))

    def _call(self, function: Callable[[], T]) -> asyncio.Future[T]:
        def run() -> T:
            with translate_errors(self.client.url):
                return function()

        return asyncio.get_running_loop().run_in_executor(self._threads, run)

    async def submit(
        self,
        graph: bytes,
        value: bytes | bytearray,
        options: JobOptions,
        *,
        key: str = "",
        job: str | None = None,
        follower: Follower | None = None,
        detached: bool = False,
        client_waits: bool = False,
    ) -> str:
        """Admit a job. Returns its ID, or that of the job which has the same idempotency key already.

        `graph` and `value` (the input) are JSON texts, `key` is the ID of the caller's API key. `follower`
        follows `job` already, so that no time is lost. `client_waits`: as for JobRequest. If no seat serves
        the job now, it may wait for one (`admission_wait`).

        Raises the errors of `gridq.Client.submit`; the job is then not queued. If the caller is cancelled,
        or hears that the server is away, a job that was admitted nevertheless is cancelled, unless it is
        `detached`.
        """
        job_id = check_job_id(job) if job is not None else make_job_id()
        is_new_id = job is None or follower is not None
        request = JobRequest(
            job_id, graph, value, options, key, is_new_id=is_new_id, client_waits=client_waits
        )

        if follower is not None and await self._admit_fast(request, detached=detached):
            follower.check_if_silent(ADMITTED_SILENCE_SECONDS)
            return job_id

        async def attempt() -> str:
            admitting = self._call(partial(self._admit, request))
            try:
                return await asyncio.shield(admitting)
            except asyncio.CancelledError:
                admitting.add_done_callback(_ignore_result if detached else partial(self._undo, job_id))
                raise

        try:
            within = limit_wait(self.config.admission_wait, options)
            admitted = await self.admission_wait.admit(attempt, within)
        except BrokerError:
            if not detached:
                self.orphaned_jobs.add(job_id)
            raise
        if follower is not None and admitted == follower.job:
            follower.check_if_silent(ADMITTED_SILENCE_SECONDS)
        return admitted

    async def _admit_fast(self, request: JobRequest, *, detached: bool) -> bool:
        """Admit a new job by one command on the loop's own connection, if nothing must be looked up first.

        False: the job must be admitted by a thread, which gives the reason if it is refused.
        """
        admission = self._admission
        arguments = None if admission is None else admission.build_fast_arguments(request)
        if admission is None or arguments is None:
            return False
        try:
            pending = self.pipe.send(("EVALSHA", self.client.scripts.shas["admit"], 0, *arguments))
        except RedisError:  # the gateway shuts down
            return False
        try:
            await asyncio.shield(pending.future)
        except RedisError:  # it may have been admitted: the thread finds out
            return False
        except asyncio.CancelledError:
            if not detached:
                pending.future.add_done_callback(partial(self._undo, request.job))
            raise
        reply = pending.replies[0]
        return not isinstance(reply, RedisError) and admission.read_fast_reply(request, reply)

    def _admit(self, request: JobRequest) -> str:
        self._admission = self.client.admission
        return self._admission.admit(request).job

    def _undo(self, job: str, admitting: asyncio.Future[Any]) -> None:
        """Cancel a job whose client disconnected while it was being admitted.

        After a lost reply the job may have been admitted too.
        """
        if admitting.cancelled():
            return
        fault = admitting.exception()
        if fault is None or isinstance(fault, RedisError | BrokerError):
            self.orphaned_jobs.add(job)

    async def read_running_seconds(self, job: str) -> float | None:
        """Return for how long the only stage of a job has been running; None if it does not run. RedisError:
        the server is away.
        """
        fields, clock = await self.pipe.execute(
            ("HMGET", self.keys("job", job), "lease:0", "started_at:0"), ("TIME",)
        )
        if None in fields:
            return None
        return int(clock[0]) + int(clock[1]) / 1e6 - int(fields[1]) / 1000

    async def read_ended(self, job: str) -> EndedJob:
        """Return how an ended job ended. Raises JobNotFound if its result has expired."""
        commands = ("LINDEX", self.keys("result", job), 0), ("LRANGE", self.keys("rows", job), 0, -1)
        try:
            end, rows = await self.pipe.execute(*commands)
        except RedisError:
            with translate_errors(self.client.url):
                both = self.redis.pipeline(transaction=False)
                for command in commands:
                    both.execute_command(*command)
                end, rows = await both.execute()
        if end is None:
            raise build_not_found_error(job)
        return EndedJob(End.parse(end), parse_rows(rows))

    async def read_end(self, job: str) -> End:
        """Return the same without the history, which may be long. Raises JobNotFound."""
        with translate_errors(self.client.url):
            end: Any = await self.redis.lindex(self.keys("result", job), 0)
        if end is None:
            raise build_not_found_error(job)
        return End.parse(end)

    async def read_answer(self, job: str, end: End) -> bytes:
        """Return the JSON text of the answer. Raises the error that ended the job, or ValueGone."""
        error = end.to_error()
        if error is not None:
            raise error
        if not values.is_link(end.payload):
            return end.payload
        with translate_errors(self.client.url):
            found: Any = await self.redis.get(self.keys("value", end.payload[1:].decode()))
        if found is None:
            raise ValueGone(
                "The stored value no longer exists",
                {"path": job, "reason": "it expires with the result of its job"},
            )
        return bytes(found)

    async def find_entry(self, job: str, number: int) -> str:
        """Return the entry of a response's stream to resume after, to get the events after event `number`.

        It is the first that is left, if it is event `number` or an earlier one: then all later ones are still
        there. Else BEGINNING.
        """
        with translate_errors(self.client.url):
            entries: Any = await self.redis.xrange(self.keys("stream", job), count=1)
        for entry, fields in entries:
            found = SEQUENCE_NUMBER.match(fields.get(b"piece", b""))
            if found and 0 < int(found[1]) <= number:
                return str(entry.decode())
        return BEGINNING

    async def store_response(self, job: str, head: bytes, options: JobOptions) -> None:
        """Keep a response in the background as it is queued, as JSON: until its job is done, whose answer is
        the whole response; if its job fails, for as long as the result.
        """
        ttl_ms = get_deadline_ms(options, self.config) + INPUT_GRACE_MS
        with translate_errors(self.client.url):
            await self.redis.set(self.keys("response", job), head, px=ttl_ms)

    async def read_response(self, job: str) -> dict[str, Json] | None:
        """Return what `store_response` keeps, None if it is gone."""
        with translate_errors(self.client.url):
            found: Any = await self.redis.get(self.keys("response", job))
        head: dict[str, Json] | None = None if found is None else json.loads(found)
        return head

    async def delete_response(self, job: str) -> None:
        """Delete what `store_response` keeps."""
        with translate_errors(self.client.url):
            await self.redis.unlink(self.keys("response", job))

    async def read_agent(self, job: str) -> str:
        """Return the agent that a job belongs to. Raises JobNotFound."""
        with translate_errors(self.client.url):
            three = self.redis.pipeline(transaction=False)
            for place in ("job", "submitted", "summary"):
                three.hget(self.keys(place, job), "agent")
            found: Any = await three.execute()
        agent = next((name for name in found if name is not None), None)
        if agent is None:
            raise build_not_found_error(job)
        return str(agent.decode())

    async def cancel(self, job: str) -> bool:
        """Cancel a job in any state. Returns False if it had ended already. Raises JobNotFound."""
        return await self.call(self.client.cancel, job)


def _ignore_result(admitting: asyncio.Future[Any]) -> None:
    """Look at an error that nobody waits for, which asyncio would log as unexpected."""
    if not admitting.cancelled():
        admitting.exception()


def sum_cents(rows: list[HistoryRow]) -> float | None:
    """Return what the stages of a job cost in cents, None if the price of anything they used is unknown."""
    micro = sum_costs(row.micro_dollars for row in rows)
    return None if micro is None else micro / 10_000
