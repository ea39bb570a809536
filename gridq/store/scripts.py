"""The Lua scripts, each called through a typed method.

A script is its own file in `lua/`, joined with what it uses of the library (`gridq.store.library`) and with
the limits as Lua constants. All run atomically in the server; a repeated call (redis-py repeats EVALSHA after
a lost reply) is harmless by design.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from redis import Redis
from redis.exceptions import NoScriptError, OutOfMemoryError, ResponseError

from gridq.config.settings import Settings
from gridq.protocol import meters
from gridq.protocol.models import Limit, Usage
from gridq.store import library, schema
from gridq.store.admitting import STREAM, Word
from gridq.store.connection import now_ms
from gridq.store.keys import Keys
from gridq.store.reliability import HALF_LIFE_MS
from gridq.store.replies import Broken, Claim, Drop, Loss, Stream, Swept, groups, read_claim

NAMES = (
    "enqueue", "admit", "stop", "register", "leave", "claim", "complete", "fail", "renew", "emit", "sweep",
    "limit", "quarantine", "rank", "adopt", "keep", "enter",
    "uphold", "afford",
)  # fmt: skip

NEW = ("enqueue", "admit")
"""The scripts that take something new. A server whose memory is used up refuses them before their first
write; all others go on, for they end what was begun and give memory back.
"""


@cache
def source(name: str, constants: str) -> str:
    """The whole text of script `name`."""
    text = library.text(name)
    flags = "" if name in NEW else "#!lua flags=allow-oom\n"
    return flags + constants + library.whole(text)


def constants(config: Settings) -> str:
    """The settings that scripts need, as Lua locals. Times in ms."""
    hold = int(config.affinity * 1000)
    keep = int((config.max_deadline + 3600) * 1000)
    age = int(config.batch_age * 1000)
    ledger = config.ledger_days * 86_400_000
    return (
        f"local SCHEMA = '{schema.SCHEMA}'\n"
        f"local P, K = '{config.prefix}', '{config.prefix}.'\n"
        f"local LEASE, GAP = {config.lease_ms}, {config.lease_ms - config.renew_ms}\n"
        f"local RESULT, KEEP, LEDGER = {int(config.result_ttl * 1000)}, {keep}, {ledger}\n"
        f"local MAXATT, MAXLOSS, AGE, HOLD = {config.max_attempts}, {config.max_losses}, {age}, {hold}\n"
        f"local QUARANTINE, HALFLIFE = {int(config.quarantine * 1000)}, {HALF_LIFE_MS}\n"
    )


class Scripts:
    """The scripts on one server. `call` gives the raw arguments to the server; the methods are the typed ways
    in.
    """

    def __init__(self, client: Redis, config: Settings) -> None:
        self.client = client
        self.config = config
        self.keys = Keys(config.prefix)
        head = constants(config)
        self.sources = {name: source(name, head) for name in NAMES}
        self.shas = {name: hashlib.sha1(text.encode()).hexdigest() for name, text in self.sources.items()}  # noqa: S324 the server's own name for it

    def call(self, name: str, *args: str | bytes | int | float) -> Any:
        """Run script `name`; where the server has forgotten it (a restart), load it again.

        SchemaMismatch, GridFull: the script refused to begin.
        """
        try:
            try:
                return self.client.evalsha(self.shas[name], 0, *args)
            except NoScriptError:
                return self.client.eval(self.sources[name], 0, *args)
        except ResponseError as exc:
            error = schema.refusal(exc)
            if error is None:
                raise
            raise error from None

    def adopt(self) -> None:
        """Start a program of the grid: SchemaMismatch where another version is at work here."""
        config = self.config
        schema.adopt(lambda: self.call("adopt"), config.lease_ms, config.renew_ms)

    def enqueue(
        self, job: str, *, agent: str, deadline_ms: int, ttl_ms: int, celery: bool, stream: Stream, graph:
        bytes, value: bytes, options: bytes, key: str = "", idempotency: str = "", body: str = "",
        queue_timeout_ms: int | None = None,
    ) -> bool | list[str]:  # fmt: skip
        """Put a job into the inbox; False where its id is known already. Nothing is stored where the reply is
        a list: `["missing"]`, `["unknown"]` or `["revoked"]` its API key (by its id), `["same", job]` or
        `["conflict", job]`. `idempotency` names the idempotency key, `body` is the body's digest.
        """
        reply: int | list[bytes] = self.call(
            "enqueue",
            job,
            agent,
            deadline_ms,
            ttl_ms,
            "1" if celery else "",
            STREAM[stream],
            graph,
            value,
            options,
            key,
            idempotency,
            body,
            "" if queue_timeout_ms is None else queue_timeout_ms,
        )
        return [word.decode() for word in reply] if isinstance(reply, list) else bool(reply)

    def admit(self, arguments: Sequence[Word]) -> list[str]:
        """Write a plan, as `admitting.arguments` gives it: `["ok", job that gave way, …]`, `["known"]`, or
        with nothing written `["noseat", queue, …]`, `["queue", queue, pending, limit, needed]`,
        `["key", why]`, `["quota", …]`, `["same", job]`, `["conflict", job]`.
        """
        return [word.decode() for word in self.call("admit", *arguments)]

    def stop(self, job: str, state: str, error: str, *, inbox_only: bool = False) -> str:
        """End a job from outside: `plain`, `celery`, `over` or `unknown`. With `inbox_only` one that has been
        admitted is `over` too.
        """
        word: str = self.call("stop", job, state, error, "1" if inbox_only else "").decode()
        return word

    def register(
        self,
        seat: str,
        incarnation: str,
        *,
        host: str,
        concurrency: int,
        queues: Sequence[str],
        ttl_ms: int,
        worker: str = "",
        limits: Iterable[Limit] = (),
        per_minute: int | None = None,
        rests: bool = False,
        only: Iterable[str] = (),
        owner: str = "",
        families: Mapping[str, Sequence[str]] | None = None,
        prices: tuple[int, int] | None = None,
        hourly: tuple[int, int] | None = None,
    ) -> str | None:
        """Make the seat live. None, or the host of the other live worker that serves it.

        `per_minute`: requests in any minute, None: no limit. `rests`: it takes nothing for now, as after
        `leave`. `only`: the agents and teams (`team:<name>`) to whom it is lent alone, none: everybody.
        `families`: of what it runs for a queue, the model's; `prices`: of its dearest model, micro-dollars a
        million tokens in and out; `hourly`: micro-dollars for an hour of a slot, and the time-out in ms of a
        stage that has none of its own.
        """
        reply = self.call(
            "register",
            seat,
            incarnation,
            host,
            concurrency,
            meters.format_limits(limits),
            " ".join(queues),
            ttl_ms,
            worker or seat,
            "" if per_minute is None else per_minute,
            "1" if rests else "",
            " ".join(f"t:{name[5:]}" if name.startswith("team:") else f"a:{name}" for name in only),
            owner,
            " ".join(f"{queue}={','.join(names)}" for queue, names in (families or {}).items() if names),
            "" if prices is None else f"{prices[0]} {prices[1]}",
            "" if hourly is None else f"{hourly[0]} {hourly[1]}",
        )
        return None if reply[0] == 1 else reply[1].decode()

    def leave(self, seat: str, incarnation: str, how: str) -> bool:
        """`drain`: take nothing more. `go`: no longer live, its open leases lost at once. `died`: the same,
        and a stage that ran there alone is held to have killed the process.
        """
        return bool(self.call("leave", seat, incarnation, how))

    def claim(self, seat: str, incarnation: str, slot: str, nonce: str) -> Claim | str:
        """The best pending stage for the seat, or the word why there is none."""
        return read_claim(self.call("claim", seat, incarnation, slot, nonce))

    def renew(
        self,
        seat: str,
        incarnation: str,
        leases: Sequence[str],
        warm: Iterable[str] = (),
        recorded: int | None = None,
        *,
        takes: Mapping[str, int] | None = None,
    ) -> list[str] | None:
        """Renew the seat and its leases: the lost ones, or None where the server does not know this
        incarnation as live. `warm`: the queues whose model the seat has loaded; `recorded`: how many stages
        this incarnation has recorded in all, None where it has told so before. `takes`: by queue for how many
        ms a stage is expected to hold a slot, where that is news and has a price.
        """
        loaded = " ".join(sorted(warm))
        told = "" if recorded is None else recorded
        times = " ".join(f"{queue}={ms}" for queue, ms in (takes or {}).items())
        words = self.call("renew", seat, incarnation, loaded, told, times, *leases)
        reply = [word.decode() for word in words]
        return None if reply == ["gone"] else reply

    def fenced(self, leases: Sequence[str]) -> list[str]:
        """Those of `leases` that no longer count: their job has ended, or their stage has gone on without
        them. Plain reads, in one round trip where all leases are open.
        """
        scores: Any = self.client.zmscore(self.keys("leases"), list(leases))
        closed = [lease for lease, score in zip(leases, scores, strict=True) if score is None]
        if not closed:
            return []
        look = self.client.pipeline(transaction=False)
        for lease in closed:
            job, step, _ = lease.split(":", 2)
            look.hget(self.keys("job", job), f"cur:{step}")
        current = [b"" if rest is None else rest for rest in look.execute()]
        return [
            lease
            for lease, rest in zip(closed, current, strict=True)
            if lease.split(":", 2)[2] != rest.decode()
        ]

    def fail(
        self, lease: str, kind: str, *, pause_ms: int, used: Usage, error: str, row: str, seat: str,
        told: str = "", uuid: str = "", why: str = "",
    ) -> str:  # fmt: skip
        """End an attempt without an output: `again`, `quarantined`, `plain`, `celery` or `fenced`.

        `told`: events for Celery's monitors; `uuid` and `why` of the one that says how the stage stopped.
        """
        args = (lease, kind, pause_ms, _words(used), error, row, seat, told, uuid, why)
        word: str = self.call("fail", *args).decode()
        return word

    def emit(self, lease: str, path: str, pieces: Sequence[str], before: int) -> bool:
        """Add pieces to the job's stream, of whose attempt `before` were written before; False where the
        attempt no longer counts.
        """
        return bool(self.call("emit", lease, path, before, *pieces))

    def quarantine(self, verb: str, job: str, step: int, by: str) -> str:
        """`release` a stage in quarantine, or `drop` it, in the name of `by`: `released`; `plain` or `celery`
        (dropped: the job has failed); `before` (it was released before), `not` (it stands in none), `over`
        (the job has ended) or `unknown` (there is no such job).
        """
        word: str = self.call("quarantine", verb, job, step, by).decode()
        return word

    def sweep(self, most: int = 200, answers: int | None = None) -> Swept:
        """One sweep, of at most so many items of each sort, and of so many answers."""
        reply = self.call("sweep", most, most if answers is None else answers)
        *counts, due, lost, over, more, faults = reply
        sorts = ("grace", "died", "seats", "due", "expired", "rung", "voided")
        found = dict(zip(sorts, counts, strict=True))
        losses = [Loss(*words) for words in groups(lost, 5)]
        dropped = [Drop(*words) for words in groups(over, 3)]
        broken = [Broken(*words) for words in groups(faults, 3)]
        return Swept(found, [job.decode() for job in due], losses, dropped, bool(more), broken)

    def rank(self, queue: str, ranks: Mapping[str, int], ttl_ms: int) -> None:
        """Rank the seats of a queue, 0 the best, for so long."""
        self.call("rank", queue, ttl_ms, *(word for pair in ranks.items() for word in pair))

    def limit(self, digest: str, about: str, fields: Mapping[str, str]) -> None:
        """Put limits in force in place of those before; an empty digest lifts them all."""
        self.call("limit", digest, about, *(word for pair in fields.items() for word in pair))

    def uphold(self, digest: str, source: str) -> str:
        """Note that a router has the quotas file of such a digest, if its limits are in force. The digest of
        those that are; empty: there are none.
        """
        return str(self.call("uphold", digest, source).decode())

    def afford(self, agent: str, team: str, micro: int, tokens: int) -> tuple[str, list[str]]:
        """Whether an agent may start a job of so much money and tokens: the team that it counts for, and the
        reply of `admit` that refuses it; [] where nothing does. `team`: its key's; `-`: none. Nothing is
        written.
        """
        counts_for, *refusal = (word.decode() for word in self.call("afford", agent, team, micro, tokens))
        return counts_for, refusal

    def enter(
        self, key: str, request: str, *, rpm: int | None, parallel: int | None, hold_ms: int
    ) -> tuple[str, int]:
        """Let `request` in by the limits of the API key `key`, all gateways counted together.

        ("ok", 0), or ("rate" or "parallel", ms until it may be otherwise). Its place among those open at once
        is held for `hold_ms`; `hold` holds it anew, `depart` gives it back.
        """
        word, *wait = self.call(
            "enter", key, request, "" if rpm is None else rpm, "" if parallel is None else parallel, hold_ms
        )
        return word.decode(), wait[0] if wait else 0

    def hold(self, key: str, requests: Sequence[str], hold_ms: int) -> None:
        """Hold the places of requests for `hold_ms` from now on. One that has lapsed or was given back stays
        so.
        """
        opened, until = self.keys("open_requests", key), now_ms(self.client) + hold_ms
        both = self.client.pipeline(transaction=True)
        both.zadd(opened, dict.fromkeys(requests, until), xx=True)
        both.pexpire(opened, hold_ms)
        both.execute()

    def depart(self, key: str, requests: Sequence[str]) -> None:
        """Give back the places of requests that have ended."""
        self.client.zrem(self.keys("open_requests", key), *requests)

    def complete(
        self, lease: str, output: bytes, *, used: Usage, rows: str, seat: str, incarnation: str, slot: str,
        nonce: str, go_on: bool, long: bytes | None = None, long_ttl_ms: int = 0, told: str = "",
    ) -> tuple[int, str, Claim | str]:  # fmt: skip
        """Record an output and take the slot's next stage.

        `long` is the value that the link `output` points to: it is written in the same round trip, before the
        script runs. Gives (1 recorded, 0 recorded before, -1 fenced off, -2 the value could not be written;
        '' or how the job ended; the next claim).
        """
        args = (
            lease,
            output,
            _words(used),
            rows,
            seat,
            incarnation,
            slot,
            nonce,
            "1" if go_on else "0",
            told,
        )
        if long is None:
            reply = self.call("complete", *args)
        else:
            both = self.client.pipeline(transaction=False)
            both.set(self.keys("value", output[1:].decode()), long, px=long_ttl_ms)
            both.evalsha(self.shas["complete"], 0, *args)
            written, reply = both.execute(raise_on_error=False)
            refused = isinstance(written, OutOfMemoryError)
            if isinstance(written, Exception) and not refused:
                raise written
            if isinstance(reply, NoScriptError):
                reply = self.call("complete", *args)
            elif isinstance(reply, Exception):
                raise reply
            if refused and reply[0] == -2:
                self.call("keep", output[1:].decode(), long, long_ttl_ms)
                reply = self.call("complete", *args)
        return reply[0], reply[1].decode(), read_claim(reply[2])


def _words(used: Usage) -> str:
    """What an attempt used, as the scripts read it."""
    micro = "" if used.micro_dollars is None else used.micro_dollars
    return f"{micro},{used.tokens_in},{used.tokens_out}"
