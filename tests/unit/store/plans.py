"""Small plans, and a driver of the scripts that remembers who holds what."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import redis

from gridq.config.settings import Settings
from gridq.graph.plan import Arms, Op, Plan, Scope, Step
from gridq.jobs.record import End, build_plan_fields
from gridq.protocol.meters import Meter, parse_budget
from gridq.protocol.models import Limit, Usage
from gridq.store.replies import Accepted, AdmitReply, Claim, EnqueueReply, QuotaReached, Swept
from gridq.store.scripts import NewJob, Scripts

ANY = "bench:any"
HOUR = 3_600_000


def step(
    *after: int, queue: str = ANY, cost: int = 0, scope: int | None = None, refs: Sequence[int] | None = None,
    fallbacks: Sequence[str] = (),
) -> Step:  # fmt: skip
    """A step of one stage that waits for `after` and reads it (or `refs`), else the job's input."""
    read = tuple(after) if refs is None else tuple(refs)
    op = Op("root", "s", "s", "bench:echo", ["arr", [["out", number] for number in read]] if read else ["in"])
    return Step(
        "root", queue, (op,), ["op", 0], after, read, reads_input=not read, scope=scope, micro_dollars=cost,
        fallbacks=tuple(fallbacks),
    )  # fmt: skip


def plan(
    *steps: Step, answer: int | None = None, arms: Iterable[Arms] = (), scopes: Iterable[Scope] = ()
) -> Plan:
    """The plan of `steps`; the last is the answer where none is named."""
    return Plan(steps, len(steps) - 1 if answer is None else answer, tuple(arms), tuple(scopes))


def one(**fields: Any) -> Plan:
    """A plan of a single step."""
    return plan(step(**fields))


def chain(length: int, **fields: Any) -> Plan:
    """`length` steps, each after the one before."""
    return plan(*(step(*((number - 1,) if number else ()), **fields) for number in range(length)))


def wide(width: int, **fields: Any) -> Plan:
    """`width` steps that are ready at once, and one that joins them."""
    return plan(*(step(**fields) for _ in range(width)), step(*range(width), **fields))


def branch(**fields: Any) -> Plan:
    """A gate, an arm of two steps for true and one of one step for false, and their join."""
    steps = (step(**fields), step(0), step(1), step(0), step(2, 3, refs=(0, 2, 3)))
    return plan(*steps, arms=[Arms(0, (1, 2), (3,))])


Tokens = tuple[int, int] | tuple[int, int, float]
"""Tokens in and out, and GPU seconds if there are any."""


def usage(micro: int | None, tokens: Tokens = (0, 0)) -> Usage:
    """Return the usage of an attempt; None means that it has no price."""
    seconds = float(sum(tokens[2:]))
    return Usage(micro_dollars=micro, tokens_in=tokens[0], tokens_out=tokens[1], seconds=seconds)


def quota(reply: AdmitReply) -> QuotaReached:
    """The reply of an admission that a limit of an agent or team refuses."""
    assert isinstance(reply, QuotaReached), reply
    return reply


def quota_of(reply: AdmitReply) -> tuple[str, str]:
    """The limit that refuses an admission, and whose it is."""
    return quota(reply).what, quota(reply).name


class Grid:
    """The scripts on one server, with ids, nonces and what each lease belongs to kept in mind."""

    def __init__(self, client: redis.Redis, config: Settings) -> None:
        self.client: Any = client  # redis-py's types say that everything may be awaited
        self.config = config
        self.scripts = Scripts(client, config)
        self.keys = self.scripts.keys
        self.budgets: dict[str, int | None] = {}
        self.holders: dict[str, tuple[str, str, str]] = {}
        self._numbers = itertools.count(1)

    def nonce(self) -> str:
        return f"n{next(self._numbers)}"

    # -- calls ---------------------------------------------------------------------------------------------

    def seat(
        self, seat: str = "m.a", *queues: str, inc: str = "i1", host: str = "h1", concurrency: int = 1,
        budget: int | None = None, record_ttl_ms: int = HOUR, period: str = "month",
        requests_per_minute: int | None = None, draining: bool = False, lent_to: Sequence[str] = (),
        limits: Sequence[Limit] = (), owner: str = "", families: Mapping[str, Sequence[str]] | None = None,
        prices: tuple[int, int] | None = None, hourly_price: tuple[int, int] | None = None,
        unavailable: str = "", keeps_prompts: bool = False,
    ) -> str | None:  # fmt: skip
        """Register a seat. Return the other host that serves it, if it is refused."""
        own = [] if budget is None else [Limit(resource="money", window=period, amount=budget)]
        other = self.scripts.register(
            seat,
            inc,
            host=host,
            concurrency=concurrency,
            queues=queues or (ANY,),
            record_ttl_ms=record_ttl_ms,
            limits=[*own, *limits],
            requests_per_minute=requests_per_minute,
            draining=draining,
            lent_to=lent_to,
            owner=owner,
            families=families,
            prices=prices,
            hourly_price=hourly_price,
            unavailable=unavailable,
            keeps_prompts=keeps_prompts,
        )
        if other is None:
            self.budgets[seat] = budget
        return other

    def admit(
        self, given: Plan, job: str | None = None, *, agent: str = "ann", prio: int = 0, celery: bool = False,
        stream: bool = False, wait: bool = True, value: bytes = b'"x"', deadline_ms: int | None = HOUR,
        ttl_ms: int = HOUR, name: str = "graph", session: str = "", key: str = "",
        queue_timeout_ms: int | None = None, idempotency: str = "", body: str = "",
        more: Mapping[str, str] | None = None,
    ) -> AdmitReply:  # fmt: skip
        """Admit a plan whose cost is the sum of its steps'."""
        fields, ready, needs = build_plan_fields(given)
        fields += [word for pair in (more or {}).items() for word in pair]
        new = NewJob(
            job=job or f"j{next(self._numbers)}", agent=agent, priority=prio, deadline_ms=deadline_ms,
            result_ttl_ms=ttl_ms, celery=celery, stream=stream, wait_for_seat=wait, input=value,
            answer=given.answer, steps=len(given.steps), queues=needs, ready=ready, fields=fields, name=name,
            session=session, api_key=key, queue_timeout_ms=queue_timeout_ms, idempotency_key=idempotency,
            body_digest=body, stages=sum(len(step.ops) for step in given.steps),
            micro_dollars=sum(step.micro_dollars for step in given.steps),
        )  # fmt: skip
        return self.scripts.admit(new)

    def job(self, given: Plan, job: str | None = None, **options: Any) -> str:
        """Admit a plan, which must be accepted. Return its id."""
        name = job or f"j{next(self._numbers)}"
        assert self.admit(given, name, **options) == Accepted()
        return name

    def enqueue(self, job: str, *, agent: str = "ann", deadline_ms: int = HOUR, ttl_ms: int = HOUR,
        celery: bool = True, stream: bool = False, value: bytes = b'"x"', queue_timeout_ms: int | None = None,
        idempotency: str = "", body: str = "",
    ) -> EnqueueReply:  # fmt: skip
        """Put a job into the inbox."""
        return self.scripts.enqueue(
            job, agent=agent, deadline_ms=deadline_ms, result_ttl_ms=ttl_ms, celery=celery, stream=stream,
            graph=b"{}", input=value, options=b"{}", queue_timeout_ms=queue_timeout_ms,
            idempotency_key=idempotency, body_digest=body,
        )  # fmt: skip

    def claim(self, seat: str = "m.a", slot: str = "0", inc: str = "i1", nonce: str = "") -> Claim | str:
        """Claim a stage for a slot."""
        found = self.scripts.claim(seat, inc, slot, nonce or self.nonce())
        return self._held(found, seat, inc, slot)

    def take(self, seat: str = "m.a", slot: str = "0", inc: str = "i1") -> Claim:
        """Claim a stage for a slot, which must get one."""
        found = self.claim(seat, slot, inc)
        assert isinstance(found, Claim), found
        return found

    def complete(
        self, lease: str | Claim, output: bytes = b"1", *, used: int | None = 0, go_on: bool = False,
        tokens: Tokens = (0, 0), long: bytes | None = None, seat: str | None = None,
    ) -> tuple[int, str, Claim | str]:  # fmt: skip
        """Complete a lease from the slot that holds it."""
        lease = lease if isinstance(lease, str) else lease.lease
        holder, inc, slot = self.holders.get(lease, ("m.a", "i1", "0"))
        holder = seat or holder
        result, ended, after = self.scripts.complete(
            lease, output, used=usage(used, tokens), rows="[]", seat=holder, incarnation=inc, slot=slot,
            nonce=self.nonce(), go_on=go_on, long=long, long_ttl_ms=2 * HOUR,
        )  # fmt: skip
        return result, ended, self._held(after, holder, inc, slot)

    def done(self, claim: Claim, output: bytes = b"1", used: int | None = 0, tokens: Tokens = (0, 0)) -> str:
        """Complete a claim, which must be recorded. Return how the job ended, or ''."""
        result, ended, _ = self.complete(claim, output, used=used, tokens=tokens)
        assert result == 1
        return ended

    def fail(
        self, lease: str | Claim, kind: str = "seat", *, pause_ms: int = 0, used: int | None = 0,
        tokens: Tokens = (0, 0), row: str = "",
    ) -> str:  # fmt: skip
        """Fail a lease from the seat that holds it."""
        lease = lease if isinstance(lease, str) else lease.lease
        seat = self.holders.get(lease, ("m.a", "", ""))[0]
        spent = usage(used, tokens)
        return self.scripts.fail(lease, kind, pause_ms=pause_ms, used=spent, error=ERROR, row=row, seat=seat)

    def _held(self, found: Claim | str, seat: str, inc: str, slot: str) -> Claim | str:
        if isinstance(found, Claim):
            self.holders[found.lease] = seat, inc, slot
        return found

    # -- time ----------------------------------------------------------------------------------------------

    def now(self) -> int:
        """The server's clock in ms."""
        seconds, micros = self.client.time()
        return int(seconds) * 1000 + int(micros) // 1000

    def sweep(self, most: int = 200) -> Swept:
        """One sweep, with the last one just before it, however slow the machine is."""
        self.client.delete(self.keys("last_sweep"))
        return self.scripts.sweep(most)

    def age(self, name: str, member: str) -> None:
        """Make a member of a sorted set of times due."""
        assert self.client.zscore(self.keys(name), member) is not None
        self.client.zadd(self.keys(name), {member: 1})

    def keep_seats(self, names: Sequence[str]) -> None:
        """Let these seats live on, though a slow machine is not done within a lease."""
        self._keep("seats", names)

    def keep_leases(self, leases: Sequence[str]) -> None:
        """Let these leases live on likewise."""
        self._keep("leases", leases)

    def _keep(self, name: str, members: Sequence[str]) -> None:
        self.client.zadd(self.keys(name), dict.fromkeys(members, self.now() + HOUR))

    def lapse(self, claim: Claim) -> None:
        """Let a lease lapse and be swept."""
        self.age("leases", claim.lease)
        assert self.sweep()[0]["died"] == 1

    def wait_over(self) -> None:
        """Let all delays end and be swept."""
        for member in self.client.zrange(self.keys("delays"), 0, -1):
            self.age("delays", member.decode())
        self.sweep(10_000)

    # -- what there is -------------------------------------------------------------------------------------

    def pending(self, queue: str = ANY) -> list[str]:
        """Return `job:step` of all stages waiting in a queue, by class and agent."""
        found: list[str] = []
        for cls in sorted(self.classes(queue)):
            for agent in self.client.zrange(self.keys("ready", queue, cls), 0, -1):
                key = self.keys("waiting", queue, cls, agent.decode())
                found += [member.decode() for member in self.client.zrange(key, 0, -1)]
        return found

    def classes(self, queue: str = ANY) -> dict[str, int]:
        """Return the number of waiting stages in each class of a queue."""
        found: Any = self.client.hgetall(self.keys("classes", queue))
        return {cls.decode(): int(count) for cls, count in found.items()}

    def field(self, job: str, name: str) -> str | None:
        """Return a field of a job's hash."""
        value: Any = self.client.hget(self.keys("job", job), name)
        return None if value is None else value.decode()

    def left(self, seat: str = "m.a") -> int | None:
        """Return what is left of the first meter of a seat's own budget."""
        found = self.meters(seat)
        return found[0].remaining if found else None

    def meters(self, seat: str = "m.a", which: str = "own") -> list[Meter]:
        """Return the meters of a seat's budget, `own` or `grid`."""
        return parse_budget(self.client.hget(self.keys("seat", seat), which), which, self.now())

    def shared(self, name: str) -> list[Meter]:
        """Return the meters of a shared budget."""
        return parse_budget(self.client.hget(self.keys("meters"), name), name, self.now())

    def held(self, seat: str = "m.a") -> dict[str, str]:
        """Return the leases of a seat by slot."""
        found: Any = self.client.hgetall(self.keys("slots", seat))
        return {slot.decode(): lease.decode() for slot, lease in found.items()}

    def wake_ups(self, queue: str) -> int:
        """Return the number of wake-ups in a queue (a seat's own: `seat:<id>`)."""
        return int(self.client.llen(self.keys.queue(queue)))

    def clear(self, *queues: str) -> None:
        """Take all wake-ups out of queues, as workers would."""
        for queue in queues:
            self.client.delete(self.keys.queue(queue))

    def end(self, job: str) -> End | None:
        """Return how a job ended, None while it has not."""
        data: Any = self.client.lindex(self.keys("result", job), 0)
        return None if data is None else End.parse(data)

    def ended(self, job: str) -> End:
        """Return how a job ended."""
        end = self.end(job)
        assert end is not None
        return end

    def own(self) -> set[str]:
        """Return the names of gridq's keys without the prefix."""
        prefix = self.keys.own
        return {key.decode()[len(prefix) :] for key in self.client.scan_iter(f"{prefix}*", count=1000)}


ERROR = '{"error":"SeatError","code":"seat.failed","message":"no","details":{}}'
