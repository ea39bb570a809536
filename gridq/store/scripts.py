"""The Lua scripts, each called through a method that names its arguments and reads its reply.

A script is one file in `lua/`; `gridq.store.library` joins it with its arguments, the library functions that
it uses and the values of the settings. The header of the file declares the arguments and their order, the
only place where that order stands: methods pass them by name.

Every script runs atomically in the server. Calling one again with the same arguments does no harm: redis-py
repeats an EVALSHA whose reply was lost.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, NamedTuple

from redis import Redis
from redis.exceptions import (
    NoScriptError,
    OutOfMemoryError,
    RedisError,
    ResponseError,
)

from gridq.config.settings import Settings
from gridq.protocol import meters
from gridq.protocol.models import Limit, Usage
from gridq.store import library, replies, schema
from gridq.store.connection import now_ms
from gridq.store.keys import Keys
from gridq.store.library import Arguments
from gridq.store.reliability import HALF_LIFE_MS
from gridq.store.replies import AdmitReply, Affordable, Claim, Completion, EnqueueReply, Entry, Stream, Swept

NAMES = (
    "enqueue", "stage_plan", "admit", "advance", "stop", "register", "leave", "claim", "complete", "fail",
    "renew", "emit", "sweep", "apply_limits", "quarantine", "rank", "adopt_schema", "store_value",
    "take_slot", "confirm_limits", "preview_quota", "forget",
)  # fmt: skip

MAX_WALK = 3_000
"""How much one call does for jobs of any size, about in commands: some 5 ms."""

MAX_AFFORD = 1_000
"""How many seats' budgets one call reads to find a seat that can pay for a stage."""

PLAN_PART_WORDS = 6_000
"""The words of a plan that one call writes: a larger one is written in parts."""

ACCEPTING = ("enqueue", "stage_plan", "admit")
"""The scripts that accept new work. A server without free memory refuses them before their first write. It
runs all the others: they finish what was begun, which frees memory.
"""

Word = str | bytes | int | float
Value = Word | bool | None
"""An argument of a script. None and False are sent as an empty string, True as `1`."""

_STREAM: dict[Stream, str] = {False: "", True: "1", "end": "e"}


@dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """A compiled job, as `admit` writes it.

    `deadline_ms` None keeps the deadline that the inbox holds. `input` is the value or a link to it. `queues`
    are the queues that need a live seat, unless `wait_for_seat`; alternatives stand in one element with `|`
    between them. `ready` are the steps that are ready at once. `fields` are fields and values of the job's
    record in turn (gridq/store/record_fields.py). `api_key` is the id of a verified key, `micro_dollars` the
    estimated cost, `idempotency_key` `<agent>:<digest>`, `body_digest` the digest of the request body.
    """

    job: str
    agent: str
    priority: int
    deadline_ms: int | None
    result_ttl_ms: int
    celery: bool
    stream: Stream
    wait_for_seat: bool
    input: bytes
    answer: int
    steps: int
    queues: Sequence[str]
    ready: Sequence[int]
    fields: Sequence[str | bytes | int]
    name: str = "graph"
    session: str = ""
    api_key: str = ""
    micro_dollars: int = 0
    stages: int = 0
    idempotency_key: str = ""
    body_digest: str = ""
    queue_timeout_ms: int | None = None


class Pieces(NamedTuple):
    """Pieces of one attempt's answer for its job's stream, all of the stage at `path`.

    `before`: how many pieces this attempt has written before. `dropped` are the parts of the stage's input
    that have no effect on the seat; the first piece has them beside it.
    """

    lease: str
    path: str
    before: int
    dropped: Sequence[str]
    pieces: Sequence[str]


Constants = tuple[tuple[str, str], ...]


@lru_cache(maxsize=len(NAMES))  # of the settings in use: all scripts are a megabyte and a half
def build_source(name: str, constants: Constants) -> str:
    """Return the whole text of a script, as the server gets it."""
    flags = "" if name in ACCEPTING else "#!lua flags=allow-oom\n"
    return flags + library.replace_constants(library.assemble(library.read_lua(name)), dict(constants))


@cache
def read_arguments(name: str) -> Arguments:
    return library.parse_arguments(library.read_lua(name))


def build_constants(config: Settings) -> Constants:
    """Return the settings that scripts need, each with its value in Lua. Times are in ms."""
    values = {
        "LEASE": config.lease_ms,
        "GAP": config.lease_ms - config.renew_ms,
        "RESULT_TTL": int(config.result_ttl * 1000),
        "KEEP": int((config.max_deadline + 3600) * 1000),
        "LEDGER": config.ledger_days * 86_400_000,
        "MAX_ATTEMPTS": config.max_attempts,
        "MAX_LOSSES": config.max_losses,
        "MAX_STAGE_INPUT": config.max_stage_input,
        "MAX_WALK": MAX_WALK,
        "MAX_AFFORD": MAX_AFFORD,
        "BATCH_AGE": int(config.batch_age * 1000),
        "HOLD": int(config.admission_wait * 1000),
        "QUARANTINE": int(config.quarantine * 1000),
        "HALF_LIFE": HALF_LIFE_MS,
    }
    texts = {"SCHEMA": schema.SCHEMA, "P": config.prefix, "K": f"{config.prefix}."}
    return (
        *((name, f"({value})") for name, value in values.items()),
        *((name, f"'{value}'") for name, value in texts.items()),
    )


class _ByName(Mapping[str, str]):
    """A text for each script, made when it is first used: a program uses few of them, and starts sooner."""

    def __init__(self, make: Callable[[str], str]) -> None:
        self._make = make
        self._made: dict[str, str] = {}

    def __getitem__(self, name: str) -> str:
        try:
            return self._made[name]
        except KeyError:
            return self._made.setdefault(name, self._make(name))

    def __iter__(self) -> Iterator[str]:
        return iter(NAMES)

    def __len__(self) -> int:
        return len(NAMES)


def _compute_sha(text: str) -> str:
    """Return the name that the server gives a script."""
    return hashlib.sha1(text.encode()).hexdigest()  # noqa: S324 Redis names scripts by their SHA-1


class Scripts:
    """The scripts on one server.

    Every method may raise SchemaMismatch or GridFull if the script refuses to begin.
    """

    def __init__(self, client: Redis, config: Settings) -> None:
        self.client = client
        self.config = config
        self.keys = Keys(config.prefix)
        constants = build_constants(config)
        self.sources = _ByName(lambda name: build_source(name, constants))
        self.shas = _ByName(lambda name: _compute_sha(self.sources[name]))

    def run(self, script: str, *words: Word) -> Any:
        """Run a script with its arguments in order; load it if the server does not know it (a restart)."""
        try:
            try:
                return self.client.evalsha(self.shas[script], 0, *words)
            except NoScriptError:
                return self.client.eval(self.sources[script], 0, *words)
        except ResponseError as exc:
            error = schema.parse_refusal(exc)
            if error is None:
                raise
            raise error from None

    def call(self, script: str, /, **arguments: Value | Sequence[Word]) -> Any:
        """Run a script with its arguments by name."""
        return self.run(script, *order_arguments(script, arguments))

    # -- jobs ------------------------------------------------------------------------------------------------

    def adopt(self) -> None:
        """Start a program of the grid. Raises SchemaMismatch if programs of another version work here."""
        config = self.config
        schema.adopt(lambda: self.call("adopt_schema"), config.lease_ms, config.renew_ms)

    def enqueue(
        self, job: str, *, agent: str, deadline_ms: int, result_ttl_ms: int, celery: bool, stream: Stream,
        graph: bytes, input: bytes, options: bytes, api_key: str = "", idempotency_key: str = "",
        body_digest: str = "", queue_timeout_ms: int | None = None,
    ) -> EnqueueReply:  # fmt: skip
        """Put a job into the inbox. Arguments are those of `NewJob`; `options` is their JSON."""
        reply = self.call(
            "enqueue", job=job, agent=agent, deadline_ms=deadline_ms, result_ttl_ms=result_ttl_ms,
            celery=celery, stream=_STREAM[stream], graph=graph, input=input, options=options, api_key=api_key,
            idempotency_key=idempotency_key, body_digest=body_digest, queue_timeout_ms=queue_timeout_ms,
        )  # fmt: skip
        return replies.read_enqueued(reply)

    def admit(self, job: NewJob) -> AdmitReply:
        """Write a plan and make its first steps ready, all or nothing. No call takes long, however large the
        plan is.
        """
        large = len(job.fields) > PLAN_PART_WORDS
        while True:
            staged = self._stage_plan(job.fields) if large else ""
            reply = self.run("admit", *build_admit_words(job, staged))
            if reply != [b"unstaged"]:
                break
        if reply[0] == b"begun":
            self.advance(job.job)
        return replies.read_admission(reply)

    def _stage_plan(self, fields: Sequence[Word]) -> str:
        """Write the fields of a large plan in parts where `admit` finds them. Return the plan's name."""
        plan = secrets.token_hex(8)
        for at in range(0, len(fields), PLAN_PART_WORDS):
            self.call("stage_plan", plan=plan, fields=fields[at : at + PLAN_PART_WORDS])
        return plan

    def advance(self, job: str) -> None:
        """Do what a call has left for further calls: for a job of very many steps (empty: for none), then for
        a change of limits. Other clients are served in between.

        The sweep does the same for callers that died.
        """
        with contextlib.suppress(RedisError):  # what was called before has succeeded
            while self.call("advance", job=job):
                pass

    def stop(self, job: str, state: str, error: str, *, inbox_only: bool = False) -> str:
        """End a job from outside, in `state` with the error's record (JSON).

        Returns `plain`, `celery` (its answer must be written to Celery's backend), `over` (it has ended, or
        was admitted with `inbox_only`) or `unknown`.
        """
        reply = self.call("stop", job=job, state=state, error_record=error, inbox_only=inbox_only)
        return self._read_end(reply, job)

    def _read_end(self, reply: bytes, job: str) -> str:
        """Return the first word of a reply, after the rest of the job's steps were stopped or restarted."""
        word, _, more = reply.decode().partition(" ")
        if more:
            self.advance(job)
        return word

    # -- seats -----------------------------------------------------------------------------------------------

    def register(
        self, seat: str, incarnation: str, *, host: str, concurrency: int, queues: Sequence[str],
        record_ttl_ms: int, worker: str = "", limits: Iterable[Limit] = (),
        requests_per_minute: int | None = None, draining: bool = False, unavailable: str = "",
        lent_to: Iterable[str] = (), owner: str = "", families: Mapping[str, Sequence[str]] | None = None,
        prices: tuple[int, int] | None = None, hourly_price: tuple[int, int] | None = None,
        keeps_prompts: bool = False,
    ) -> str | None:  # fmt: skip
        """Make the seat live. Returns None, or the host of another live worker that serves it.

        `limits` are those of its own budget. `draining`: it takes nothing for now, as after `leave`.
        `unavailable`: why it or some of its models take nothing (`seat_states.format_unavailable`).
        `lent_to`: the only agents and teams (`team:<name>`) that may use it; empty: everybody. `families`:
        queue → the model families that it runs there. `prices`: micro-dollars a million tokens in and out, of
        its dearest model. `hourly_price`: micro-dollars an hour of a slot, and the timeout in ms of a stage
        that has none. `keeps_prompts`: a prompt that it has seen before takes it less time.
        """
        accounts = (f"t:{name[5:]}" if name.startswith("team:") else f"a:{name}" for name in lent_to)
        family_lists = (f"{queue}={','.join(names)}" for queue, names in (families or {}).items() if names)
        reply = self.call(
            "register", seat=seat, incarnation=incarnation, host=host, concurrency=concurrency,
            limits=meters.format_limits(limits), queues=" ".join(queues), record_ttl_ms=record_ttl_ms,
            worker=worker or seat, requests_per_minute=requests_per_minute, draining=draining,
            unavailable=unavailable,
            lent_to=" ".join(accounts), owner=owner, families=" ".join(family_lists),
            prices=None if prices is None else f"{prices[0]} {prices[1]}",
            hourly_price=None if hourly_price is None else f"{hourly_price[0]} {hourly_price[1]}",
            keeps_prompts=keeps_prompts,
        )  # fmt: skip
        return None if reply[0] == 1 else reply[1].decode()

    def leave(self, seat: str, incarnation: str, how: str, unavailable: str = "") -> bool:
        """Take the seat out of service. Returns False if this incarnation is not the live one.

        `how` is `drain` (take nothing more; `unavailable` as for `register`), `go` (no longer live, its
        leases are lost at once) or `died` (the same, and a stage that ran there alone counts as what killed
        the process).
        """
        return bool(self.call("leave", seat=seat, incarnation=incarnation, how=how, unavailable=unavailable))

    def renew(
        self, seat: str, incarnation: str, leases: Sequence[str], warm: Iterable[str] = (),
        recorded: int | None = None, *, stage_ms: Mapping[str, int] | None = None,
        pass_over: Mapping[str, float] | None = None,
    ) -> list[str] | None:  # fmt: skip
        """Renew the seat and its leases. Returns the lost leases, or None if the incarnation is not live.

        `warm`: queues whose model is loaded. `pass_over`: queue → how many seconds its stages may be passed
        over for stages of those, if it is not the usual time. `recorded`: how many stages this incarnation
        has recorded, None if that is not news. `stage_ms`: queue → how many ms a stage is expected to occupy
        a slot, if that is news and slots have a price.
        """
        times = " ".join(f"{queue}={ms}" for queue, ms in (stage_ms or {}).items())
        patience = " ".join(f"{queue}={round(s * 1000)}" for queue, s in sorted((pass_over or {}).items()))
        words = self.call(
            "renew", seat=seat, incarnation=incarnation, warm=" ".join(sorted(warm)), pass_over=patience,
            recorded=recorded, stage_ms=times, leases=leases,
        )  # fmt: skip
        reply = [word.decode() for word in words]
        return None if reply == ["gone"] else reply

    def rank(self, queue: str, ranks: Mapping[str, int], ttl_ms: int) -> None:
        """Rank the seats of a queue for `ttl_ms`; 0 is the best rank."""
        self.call("rank", queue=queue, ttl_ms=ttl_ms, ranks=_flatten(ranks))

    # -- attempts --------------------------------------------------------------------------------------------

    def claim(self, seat: str, incarnation: str, slot: str, nonce: str) -> Claim | str:
        """Claim the best waiting stage for a slot. Returns the reason (`NoClaim`) if there is none."""
        reply = self.call("claim", seat=seat, incarnation=incarnation, slot=slot, nonce=nonce)
        return replies.read_claim(reply)

    def send_claim(self, seat: str, incarnation: str, slot: str, nonce: str) -> Callable[[], Claim | str]:
        """Claim without waiting for the reply. Returns a function that waits for the reply and returns it.
        Call that function once, on any thread: until then, the claim holds a connection of the pool.

        If you call it so late that the lease may be over and another worker may run the stage, it claims
        again; that returns the same stage if the slot still holds it.
        """
        words = order_arguments(
            "claim", {"seat": seat, "incarnation": incarnation, "slot": slot, "nonce": nonce}
        )
        pool = self.client.connection_pool
        connection = pool.get_connection()
        with contextlib.suppress(RedisError):  # reading fails too
            connection.send_command("EVALSHA", self.shas["claim"], 0, *words)  # type: ignore[no-untyped-call]
        late_at = time.monotonic() + self.config.renew_ms / 1000

        def receive() -> Claim | str:
            try:
                reply = connection.read_response()
            except RedisError:  # the connection was lost, or the server does not know the script
                reply = None
            finally:
                pool.release(connection)
            if reply is None or time.monotonic() > late_at:
                reply = self.run("claim", *words)
            return replies.read_claim(reply)

        return receive

    def complete(
        self, lease: str, output: bytes, *, used: Usage, rows: str, seat: str, incarnation: str, slot: str,
        nonce: str, go_on: bool, long: bytes | None = None, long_ttl_ms: int = 0, events: str = "",
    ) -> Completion:  # fmt: skip
        """Record an output and, with `go_on`, claim the slot's next stage (with `nonce`).

        `long` is the value that the link `output` points to; it is written in the same round trip, before the
        script runs. `rows` and `events` (what Celery's monitors are told) are JSON.
        """
        words = order_arguments("complete", {
            "lease": lease, "output": output, "used": _format_usage(used), "rows": rows, "seat": seat,
            "incarnation": incarnation, "slot": slot, "nonce": nonce, "go_on": go_on, "events": events,
        })  # fmt: skip
        if long is None:
            reply = self.run("complete", *words)
        else:
            reply = self._complete_long(output[1:].decode(), long, long_ttl_ms, words)
        if reply[3]:
            self.advance(lease.partition(":")[0])
        return Completion(reply[0], reply[1].decode(), replies.read_claim(reply[2]))

    def _complete_long(self, name: str, long: bytes, ttl_ms: int, words: tuple[Word, ...]) -> Any:
        pipe = self.client.pipeline(transaction=False)
        pipe.set(self.keys("value", name), long, px=ttl_ms)
        pipe.evalsha(self.shas["complete"], 0, *words)
        written, reply = pipe.execute(raise_on_error=False)
        out_of_memory = isinstance(written, OutOfMemoryError)
        if isinstance(written, Exception) and not out_of_memory:
            raise written
        if isinstance(reply, NoScriptError):
            reply = self.run("complete", *words)
        elif isinstance(reply, Exception):
            raise reply
        if out_of_memory and reply[0] == replies.Recorded.VALUE_MISSING:
            self.call("store_value", name=name, value=long, ttl_ms=ttl_ms)
            reply = self.run("complete", *words)
        return reply

    def fail(
        self, lease: str, kind: str, *, pause_ms: int, used: Usage, error: str, row: str, seat: str,
        events: str = "", uuid: str = "", why: str = "",
    ) -> str:  # fmt: skip
        """End an attempt without an output.

        `kind` is `stage` (its own fault, it fails for good), `seat`, `died`, `lost` or `back` (handed back).
        Returns `again`, `quarantined`, `plain`, `celery` or `fenced`. `events` is what Celery's monitors are
        told of the attempt, `uuid` and `why` name the stage there and the reason why it stopped.
        """
        reply = self.call(
            "fail", lease=lease, kind=kind, pause_ms=pause_ms, used=_format_usage(used), error_record=error,
            row=row, seat=seat, events=events, uuid=uuid, why=why,
        )  # fmt: skip
        return self._read_end(reply, lease.partition(":")[0])

    def emit_all(self, batch: Sequence[Pieces]) -> list[bool | ResponseError]:
        """Add pieces to the streams of several jobs, in one call, so that a reader of all gets them together.

        Returns for each whether the attempt still counts, or the error with which the server refused it.
        """
        try:
            return [*self._emit(batch)]
        except ResponseError as exc:
            if len(batch) == 1:
                return [exc]
        return [self.emit_all([pieces])[0] for pieces in batch]  # one is at fault

    def _emit(self, batch: Sequence[Pieces]) -> list[bool]:
        words: list[Word] = []
        for lease, path, before, dropped, pieces in batch:
            stated = json.dumps(dropped, separators=(",", ":")) if dropped else ""
            words += (lease, path, before, stated, len(pieces), *pieces)
        return [bool(counts) for counts in self.call("emit", streams=words)]

    def find_fenced(self, leases: Sequence[str]) -> list[str]:
        """Return those of `leases` that no longer count: their job has ended, or their stage goes on without
        them. Plain reads; one round trip if all leases are open.
        """
        scores: Any = self.client.zmscore(self.keys("leases"), list(leases))
        closed = [lease for lease, score in zip(leases, scores, strict=True) if score is None]
        if not closed:
            return []
        pipe = self.client.pipeline(transaction=False)
        for lease in closed:
            job, step, _ = lease.split(":", 2)
            pipe.hget(self.keys("job", job), f"lease:{step}")
        current = [b"" if rest is None else rest for rest in pipe.execute()]
        return [
            lease
            for lease, rest in zip(closed, current, strict=True)
            if lease.split(":", 2)[2] != rest.decode()
        ]

    def quarantine(self, verb: str, job: str, step: int, by: str) -> str:
        """`release` or `drop` a stage in quarantine, in the name of `by`.

        Returns `released`; `plain` or `celery` (dropped: the job has failed); `before` (it was released
        before), `not` (it is not in quarantine), `over` (the job has ended) or `unknown` (no such job).
        """
        word: str = self.call("quarantine", verb=verb, job=job, step=step, by=by).decode()
        return word

    def sweep(self, limit: int = 200, answers: int | None = None) -> Swept:
        """Sweep once: at most `limit` items of each sort, and at most `answers` answers."""
        reply = self.call("sweep", limit=limit, answers=limit if answers is None else answers)
        if reply[10] == 2:
            with contextlib.suppress(RedisError):  # the sweep has succeeded; its reply has what is lost else
                self.call("advance", job="")
        return replies.read_swept(reply)

    # -- limits ----------------------------------------------------------------------------------------------

    def apply_limits(self, digest: str, about: str, fields: Mapping[str, str]) -> None:
        """Put limits in force instead of those before; an empty digest lifts them all."""
        if self.call("apply_limits", digest=digest, about=about, fields=_flatten(fields)) == 2:
            self.advance("")

    def confirm_limits(self, digest: str, holder: str) -> str:
        """Note that a router has the quotas file with this digest, if its limits are in force.

        Returns the digest of the limits in force, empty if there are none.
        """
        return str(self.call("confirm_limits", digest=digest, holder=holder).decode())

    def preview_quota(
        self, agent: str, team: str, micro_dollars: int, tokens: int, gpu_ms: int = 0
    ) -> Affordable:
        """Check whether an agent may start a job of this cost and size. Nothing is written.

        `team` is the team of its API key, `-` for none.
        """
        reply = self.call(
            "preview_quota",
            agent=agent,
            team=team,
            micro_dollars=micro_dollars,
            tokens=tokens,
            gpu_ms=gpu_ms,
        )
        return replies.read_affordable(reply)

    def forget(self, job: str) -> bool:
        """Delete the answer, the events and the idempotency key of an ended job; False if there is none."""
        while (found := self.call("forget", job=job)) == 2:
            pass
        return bool(found)

    def take_slot(
        self, key: str, request: str, *, rpm: int | None, parallel: int | None, slot_ms: int
    ) -> Entry:
        """Let `request` in by the limits of the API key `key`, all gateways counted together.

        The slot of the request among those open at once lapses after `slot_ms`. `extend_slots` renews it,
        `release_slots` gives it back.
        """
        outcome, *wait = self.call(
            "take_slot", key=key, request=request, rpm=rpm, parallel=parallel, slot_ms=slot_ms
        )
        return Entry(outcome.decode(), wait[0] if wait else 0)

    def extend_slots(self, key: str, requests: Sequence[str], slot_ms: int) -> None:
        """Renew the slots of open requests. A slot that has lapsed or was given back stays so."""
        slots, until = self.keys("open_requests", key), now_ms(self.client) + slot_ms
        pipe = self.client.pipeline(transaction=True)
        pipe.zadd(slots, dict.fromkeys(requests, until), xx=True)
        pipe.pexpire(slots, slot_ms)
        pipe.execute()

    def release_slots(self, key: str, requests: Sequence[str]) -> None:
        """Give back the slots of requests that have ended."""
        self.client.zrem(self.keys("open_requests", key), *requests)


def order_arguments(script: str, arguments: Mapping[str, Value | Sequence[Word]]) -> tuple[Word, ...]:
    """Return named arguments in the order that the script declares.

    Raises TypeError if they are not exactly those.
    """
    declared = read_arguments(script)
    names, rest = declared.names, declared.rest
    try:
        words = tuple(_to_word(arguments[name]) for name in names)
        more = () if rest is None else arguments[rest]
    except KeyError as exc:
        raise TypeError(f"{script}.lua needs the argument {exc}") from None
    if len(arguments) != len(names) + (rest is not None):
        unknown = sorted(arguments.keys() - {*names, rest})
        raise TypeError(f"{script}.lua has no argument {', '.join(unknown)}")
    return (*words, *more)  # type: ignore[misc]


def build_admit_words(job: NewJob, staged: str = "") -> tuple[Word, ...]:
    """Return the arguments of admit.lua in order, for a caller that sends the command itself.

    `staged` names the plan whose fields were written before.
    """
    arguments: dict[str, Any] = {name: getattr(job, name) for name in NewJob.__slots__}
    arguments["plan"] = staged
    if staged:
        arguments["fields"] = ()
    arguments["groups"] = json.dumps(_group_ready_steps(job), separators=(",", ":"))
    expected = [
        meters.UsageEstimate.parse(str(value))
        for name, value in zip(job.fields[::2], job.fields[1::2], strict=True)
        if str(name).startswith("tokens:")
    ]
    tokens, gpu_ms = (sum(each.tokens for each in expected), sum(each.gpu_ms or 0 for each in expected))
    arguments["expected_use"] = f"{tokens} {gpu_ms}"
    arguments["stream"] = _STREAM[job.stream]
    arguments["queues"] = " ".join(job.queues)
    arguments["ready"] = " ".join(map(str, job.ready))
    return order_arguments("admit", arguments)


def _group_ready_steps(job: NewJob) -> list[tuple[str | int, ...]]:
    """Return a job's ready steps as the argument `groups` of admit.lua names them."""
    fields = {str(name): str(value) for name, value in zip(job.fields[::2], job.fields[1::2], strict=True)}
    groups: dict[tuple[str, ...], list[str]] = {}
    for step in job.ready:
        queue, cost, _ = fields[f"header:{step}"].split(" ", 2)
        chain = fields.get(f"chain:{step}", "")
        tokens = fields.get(f"tokens:{step}", "") if chain else ""
        groups.setdefault((queue, cost, fields.get(f"excluded:{step}", ""), chain), []).append(tokens)
    return [(*alike, max(tokens, key=_sum_tokens), len(tokens)) for alike, tokens in groups.items()]


def _sum_tokens(text: object) -> int:
    """Return the tokens in and out of a step's field `tokens`, 0 if it is empty."""
    return sum(map(int, str(text).split(" ", 2)[:2])) if text else 0


def _to_word(value: Any) -> Word:
    if value is None or value is False:
        return ""
    return "1" if value is True else value


def _flatten(pairs: Mapping[str, Word]) -> list[Word]:
    return [word for pair in pairs.items() for word in pair]


def _format_usage(used: Usage) -> str:
    """Return what an attempt used, as the scripts read it."""
    micro = "" if used.micro_dollars is None else used.micro_dollars
    return f"{micro},{used.tokens_in},{used.tokens_out},{used.gpu_ms}"
