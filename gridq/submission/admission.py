"""Admission: one path from a submission to a plan in Redis, or to one error with nothing written.

A submission passes these steps, whatever way it came in:

1. its API key is verified, its graph and input are encoded (`gridq.submission.request`; the gateway does both
   as it reads the HTTP request, the inbox when the job is submitted through Celery)
2. an earlier submission with the same idempotency key is looked up
3. the graph is compiled to a plan, and a large input is stored
4. the seats that may not take a stage are found, and the deadline is checked
5. one script checks queues, quotas and the key again, and writes the job (`store/lua/admit.lua`; the quota
   check is in `store/lua/lib/quotas.lua`)

The router, the broker client and the gateway share `Admission.admit`, each in its own process.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from gridq.config.settings import Settings
from gridq.errors import JobBudgetExceeded, NoLiveSeat, QueueFull, UnknownStage
from gridq.graph.catalogue import StageSpec
from gridq.graph.nodes import Graph
from gridq.graph.plan import Plan
from gridq.jobs import idempotency
from gridq.jobs.idempotency import Fingerprint
from gridq.jobs.record import (
    build_plan_fields,
    choose_job_name,
    format_chain,
    get_budget_micro_dollars,
    get_deadline_ms,
    get_queue_timeout_ms,
)
from gridq.limits import accounts, api_keys
from gridq.limits.quotas_loader import read_aliases
from gridq.profiles.profile import Profile
from gridq.protocol import queue_names
from gridq.protocol.meters import NO_ESTIMATE, UsageEstimate
from gridq.protocol.models import Advertisement, Json
from gridq.protocol.money import format_dollars
from gridq.protocol.queue_aliases import NO_ALIASES, QueueAliases
from gridq.seats import access, registry
from gridq.store import values
from gridq.store.connection import now_ms
from gridq.store.replies import (
    Accepted,
    AdmitReply,
    AlreadyKnown,
    KeyRefused,
    NoSeat,
    NotLent,
    OtherBody,
    QueueLimitReached,
    QuotaReached,
    SameJob,
    read_admission,
)
from gridq.store.scripts import NewJob, Scripts, Word, build_admit_words
from gridq.store.ttl_cache import TtlCache
from gridq.submission import seat_wait
from gridq.submission.estimates import TokenEstimate, estimate_tokens, expect_usage, format_expected
from gridq.submission.planning import compile_text, load_local_catalogue
from gridq.submission.request import JobRequest, store_large_input
from gridq.submission.seat_filters import ExcludedSeats, StepDemand, find_demands, find_excluded_seats
from gridq.submission.start_check import EXPLAINED, FirstStage, LiveForecast, find_first_stages
from gridq.telemetry import narration

MAX_COMPILED = 256
"""Compiled graphs that are kept; those that were used last stay."""

CATALOGUE_TTL_SECONDS = 2.0

ALIASES_TTL_SECONDS = 2.0
"""A changed alias applies after this time."""

ADVERTISEMENTS_TTL_SECONDS = 1.0
"""A seat that joins within this time counts as one that joined just after the admission."""


@dataclass(frozen=True, slots=True)
class CompiledGraph:
    """A plan as admit.lua writes it, and what admission must check of it. `queues`: those of each step, the
    fall-backs included.
    """

    answer: int
    steps: int
    stages: int
    fields: list[str | int]
    ready: list[int]
    needs: list[str]
    queues: list[tuple[str, ...]]
    demands: tuple[StepDemand, ...]
    name: str = "graph"
    micro_dollars: int = 0
    first_stages: tuple[FirstStage, ...] = ()
    estimates: tuple[TokenEstimate, ...] = ()


@dataclass(frozen=True, slots=True)
class Admitted:
    """The job that a submission became. `compiled` is None for an earlier job with its idempotency key."""

    job: str
    compiled: CompiledGraph | None = None

    @property
    def needs_router(self) -> bool:
        """True if the job has pure stages, which the routers run."""
        return self.compiled is not None and queue_names.PURE in self.compiled.needs


class Admission:
    """Compiles graphs and admits them. One object for each process; threads may share it."""

    def __init__(self, scripts: Scripts, config: Settings, profiles: Mapping[str, Profile]) -> None:
        self.scripts = scripts
        self.config = config
        self.profiles = profiles
        self.forecast = LiveForecast(scripts.client, scripts.keys, config.batch_age)
        self._local_catalogue = load_local_catalogue(config, profiles)
        self._catalogue = self._local_catalogue
        self._catalogue_read_at = 0.0
        self._aliases = NO_ALIASES
        self._aliases_expire_at = 0.0
        self._compiled: OrderedDict[bytes, CompiledGraph] = OrderedDict()
        self._advertisements = TtlCache[Sequence[Advertisement]](ADVERTISEMENTS_TTL_SECONDS)

    # -- the way in

    def admit(self, request: JobRequest) -> Admitted:
        """Write the job of a submission, or find the job that has its idempotency key already.

        Nothing is written if it raises. NoLiveSeat, QueueFull, DeadlineUnreachable, QuotaExceeded (including
        JobBudgetExceeded) and GridFull have the details of `gridq.submission.refusal_details`. It also raises
        GraphError, AuthError and IdempotencyConflict.
        """
        client, keys = self.scripts.client, self.scripts.keys
        fingerprint = request.make_fingerprint()
        existing = idempotency.find_existing_job(client, keys, fingerprint, verified=bool(request.key_id))
        if existing is not None:
            return Admitted(existing)
        compiled = self.compile(request.graph)
        value = store_large_input(self.scripts, request.job, request.value, request.options)
        return self._admit(replace(request, value=value), compiled, fingerprint)

    def build_fast_arguments(self, request: JobRequest) -> tuple[Word, ...] | None:
        """Return the arguments of admit.lua for a job for which nothing must be looked up first; else None.

        These are new jobs whose graph is compiled and which ask for no seat, deadline or budget of their own.
        If the script replies `ok`, call `read_fast_reply`. If it refuses, it has written nothing:
        `admit` gives the reason.
        """
        if time.monotonic() >= self._aliases_expire_at:
            return None
        compiled, options = self._find_compiled(request.graph), request.options
        own_limits = (options.pin, options.deadline, options.queue_timeout, options.budget_cents)
        if compiled is None or compiled.demands or options.avoid or any(x is not None for x in own_limits):
            return None
        if not request.is_unique or len(request.value) > self.config.inline_value:
            return None
        expected = self._expect_usage(compiled, bytes(request.value))
        return build_admit_words(self._build_job(request, compiled, Fingerprint(), {}, expected))

    def read_fast_reply(self, request: JobRequest, reply: Sequence[bytes]) -> bool:
        """Return whether admit.lua wrote the job, called with the words of `build_fast_arguments`."""
        found = read_admission(reply)
        compiled = self._find_compiled(request.graph)
        if isinstance(found, Accepted) and compiled is not None:
            _narrate(request, compiled, found)
        return isinstance(found, Accepted)

    # -- compiling

    def compile(self, graph: bytes) -> CompiledGraph:
        """Return the plan of a graph's JSON text; equal texts are compiled once. Raises GraphError."""
        self._refresh_aliases()
        found = self._find_compiled(graph)
        if found is not None:
            return found
        aliases = self._aliases
        try:
            source, plan = self._compile_text(graph, aliases)
        except UnknownStage:  # a machine that joined since may offer it
            if time.monotonic() - self._catalogue_read_at < CATALOGUE_TTL_SECONDS:
                raise
            self._refresh_catalogue()
            source, plan = self._compile_text(graph, aliases)
        fields, ready, needs = build_plan_fields(plan)
        compiled = CompiledGraph(
            plan.answer,
            len(plan.steps),
            sum(len(step.ops) for step in plan.steps),
            fields,
            ready,
            needs,
            [step.queues for step in plan.steps],
            find_demands(plan, self.profiles, aliases),
            choose_job_name(source, plan),
            sum(step.micro_dollars for step in plan.steps),
            find_first_stages(plan, ready),
            estimate_tokens(plan, self.profiles),
        )
        if aliases is not self._aliases:  # another thread has read newer ones meanwhile
            return compiled
        self._compiled[graph] = compiled
        while len(self._compiled) > MAX_COMPILED:
            self._compiled.popitem(last=False)
        return compiled

    def _find_compiled(self, graph: bytes) -> CompiledGraph | None:
        compiled = self._compiled.get(graph)
        if compiled is not None:
            with suppress(KeyError):  # another thread has removed it meanwhile
                self._compiled.move_to_end(graph)
        return compiled

    def _refresh_aliases(self) -> None:
        """Read the aliases again if they have expired. If they differ, graphs are compiled again."""
        if time.monotonic() < self._aliases_expire_at:
            return
        aliases = read_aliases(self.scripts.client, self.scripts.keys)
        if aliases != self._aliases:
            self._aliases = aliases
            self._compiled.clear()
        self._aliases_expire_at = time.monotonic() + ALIASES_TTL_SECONDS

    def _refresh_catalogue(self) -> None:
        offered = registry.read_published_stages(self.scripts.client, self.scripts.keys)
        self._catalogue = self._local_catalogue.extend(map(StageSpec.from_json, offered))
        self._compiled.clear()
        self._catalogue_read_at = time.monotonic()

    def _compile_text(self, text: bytes, aliases: QueueAliases) -> tuple[Graph, Plan]:
        graph, _, plan = compile_text(text, self._catalogue, self.config, self.profiles, aliases)
        return graph, plan

    # -- checking and writing

    def _admit(self, request: JobRequest, compiled: CompiledGraph, fingerprint: Fingerprint) -> Admitted:
        """Admit a job whose input is stored."""
        options = request.options
        excluded_seats: ExcludedSeats = {}
        expected = self._expect_usage(compiled, self._find_input(request, compiled))
        stages = [replace(one, expects=expected.get(one.step, NO_ESTIMATE)) for one in compiled.first_stages]

        def check_and_write() -> Admitted:
            nonlocal excluded_seats
            if compiled.demands or options.pin is not None or options.avoid:
                excluded_seats = self._find_excluded_seats(request, compiled)
            self.forecast.check(request.job, stages, options, excluded_seats, queued=request.queued)
            reply = self.scripts.admit(
                self._build_job(request, compiled, fingerprint, excluded_seats, expected)
            )
            return Admitted(self._read_reply(request, compiled, reply), compiled)

        awaited: tuple[str, ...] = ()
        try:
            try:
                return check_and_write()
            except NoLiveSeat as exc:
                awaited = self._find_awaited(exc, request, compiled)
                if awaited or values.is_link(request.value):  # the script may have deleted a stored input
                    raise
                self._advertisements.forget()
                return check_and_write()  # a seat that had gone may have come back between the two looks
        except EXPLAINED as exc:
            if values.is_link(request.value):
                self.scripts.client.unlink(self.scripts.keys("value", request.value[1:].decode()))
            explained = self.forecast.explain(exc, stages, options, excluded_seats)
            if isinstance(explained, NoLiveSeat):
                explained.awaited = awaited
            raise explained from None

    def _read_reply(self, request: JobRequest, compiled: CompiledGraph, reply: AdmitReply) -> str:
        """Return the job's id by the reply of admit.lua, or raise the refusal that it stands for."""
        match reply:
            case Accepted():
                _narrate(request, compiled, reply)
            case AlreadyKnown():
                pass
            case SameJob(job):
                return job
            case OtherBody(job):
                raise idempotency.build_conflict_error(job, keyed=job != request.job)
            case KeyRefused(reason):
                raise api_keys.build_key_error(reason, request.key_id)
            case NoSeat(queues):
                raise self._build_no_seat_error(queues[0].split("|"))
            case NotLent():
                raise access.build_not_lent_error(reply, request.options.agent)
            case QueueLimitReached():
                raise _build_queue_full_error(reply)
            case QuotaReached():
                zone = accounts.read_zone(self.scripts.client, self.scripts.keys, self.config.timezone)
                raise accounts.build_quota_error(reply, zone)
        return request.job

    def _build_job(
        self,
        request: JobRequest,
        compiled: CompiledGraph,
        fingerprint: Fingerprint,
        excluded_seats: ExcludedSeats,
        expected: Mapping[int, UsageEstimate],
    ) -> NewJob:
        """Return the job as admit.lua writes it. Raises JobBudgetExceeded."""
        options = request.options
        fields = [*compiled.fields, *format_expected(expected)]
        if excluded_seats:
            for step, names in excluded_seats.items():
                fields += _format_excluded_seats(step, compiled.queues[step], names)
        if options.prefer is not None:
            fields += ["preferred_seat", options.prefer]
        if options.wait_for_seat:
            fields += ["wait_for_seat", 1]
        if request.client_waits:
            fields += ["client_waits", 1]
        budget = get_budget_micro_dollars(options)
        if budget is not None:
            if compiled.micro_dollars > budget:
                raise _build_job_budget_error(budget, compiled.micro_dollars)
            fields += ["budget", budget]
        return NewJob(
            job=request.job,
            agent=options.agent,
            priority=options.prio,
            deadline_ms=None if request.queued else get_deadline_ms(options, self.config),
            result_ttl_ms=int(self.config.result_ttl * 1000),
            celery=request.celery,
            stream=options.stream,
            wait_for_seat=options.wait_for_seat,
            input=bytes(request.value),
            answer=compiled.answer,
            steps=compiled.steps,
            queues=compiled.needs,
            ready=compiled.ready,
            fields=fields,
            name=options.name or compiled.name,
            session=options.session or "",
            api_key=request.key_id,
            micro_dollars=compiled.micro_dollars,
            stages=compiled.stages,
            idempotency_key=fingerprint.key,
            body_digest=fingerprint.digest,
            queue_timeout_ms=get_queue_timeout_ms(options, self.config),
        )

    def _find_excluded_seats(self, request: JobRequest, compiled: CompiledGraph) -> ExcludedSeats:
        """Return the seats that may not take the job's steps. Raises NoLiveSeat."""
        is_cached = self._advertisements.is_fresh()
        seats = self._advertisements.get(self._read_advertisements)
        options = request.options
        try:
            lent = access.filter_lent_seats(self.scripts, request.job, seats, options, request.key_id)
            queues = dict(enumerate(compiled.queues))
            return find_excluded_seats(queues, compiled.demands, lent, options, self.profiles)
        except NoLiveSeat:
            if not is_cached:
                raise
            self._advertisements.forget()  # a seat may have joined since
            return self._find_excluded_seats(request, compiled)

    def _read_advertisements(self) -> Sequence[Advertisement]:
        return registry.read_advertisements(self.scripts.client, self.scripts.keys)

    def _find_input(self, request: JobRequest, compiled: CompiledGraph) -> bytes:
        """Return the input by which a job is estimated. The inbox holds that of a queued one."""
        if not request.queued or not compiled.estimates:
            return bytes(request.value)
        found: Any = self.scripts.client.hget(self.scripts.keys("submitted", request.job), "input")
        return found or b""

    def _expect_usage(self, compiled: CompiledGraph, value: bytes) -> dict[int, UsageEstimate]:
        """Estimate what each step will use with an input, which may be a link to a stored one."""
        length = len(value)
        if compiled.estimates and values.is_link(value):
            length = int(self.scripts.client.strlen(self.scripts.keys("value", value[1:].decode())))
        return expect_usage(compiled.estimates, value, length)

    def _find_awaited(
        self, error: NoLiveSeat, request: JobRequest, compiled: CompiledGraph
    ) -> tuple[str, ...]:
        """Return what a refused job may wait for."""
        client, keys, options = self.scripts.client, self.scripts.keys, request.options
        queues = {queue for step in compiled.queues for queue in step} - {queue_names.PURE}
        team = access.find_team(client, keys, request.job, options.agent, request.key_id)
        return seat_wait.find_awaited(client, keys, error, queues=queues, options=options, team=team)

    def _build_no_seat_error(self, queues: Sequence[str]) -> NoLiveSeat:
        live = registry.read_live_seats(self.scripts.client, self.scripts.keys, routers=False)
        reasons = [registry.explain_no_seat(queue, live) for queue in queues]
        seconds = registry.find_seconds_back(queues, live, now_ms(self.scripts.client) / 1000)
        return NoLiveSeat(
            f"No live seat serves {' or '.join(map(queue_names.format_queue, queues))}",
            {
                "path": queues[0],
                "queue": queues[0],
                **({"queues": list(queues)} if len(queues) > 1 else {}),
                "reason": "; ".join(dict.fromkeys(reasons)),
                **({} if seconds is None else {"retry_after": round(seconds, 1)}),
                "fix": f"{registry.suggest_seat(queues, live)}, or submit with wait_for_seat",
            },
        )


def _narrate(request: JobRequest, compiled: CompiledGraph, reply: Accepted) -> None:
    options = request.options
    narration.narrate(
        "job admitted",
        job=request.job,
        name=options.name or compiled.name,
        agent=options.agent,
        stages=compiled.stages,
    )
    for dropped in reply.dropped_jobs:
        narration.narrate("job preempted", job=dropped, by=request.job)


def _format_excluded_seats(step: int, queues: Sequence[str], excluded: Sequence[str]) -> list[str]:
    """Return the job's fields that keep seats from a step, now and in later tries, by each queue."""
    chain = [f"chain:{step}", format_chain(queues, excluded)] if len(queues) > 1 else []
    return [*chain, f"excluded:{step}", excluded[0], f"unfit:{step}", excluded[0]] if excluded[0] else chain


def _build_job_budget_error(budget: int, needed: int) -> JobBudgetExceeded:
    return JobBudgetExceeded(
        f"The job is estimated at {format_dollars(needed)}, but its budget is {format_dollars(budget)}",
        {
            "path": "budget_cents",
            "limit": budget,
            "needed": needed,
            "fix": f"submit it with a budget_cents of {needed / 10_000:g} or more",
        },
    )


def _build_queue_full_error(reply: QueueLimitReached) -> QueueFull:
    queue, pending, limit, needed = reply.queue, reply.pending, reply.limit, reply.needed
    stages = "a stage" if needed == 1 else f"the {needed} stages that are ready at once"
    details: dict[str, Json] = {
        "path": queue,
        "queue": queue,
        "pending": pending,
        "limit": limit,
        "needed": needed,
        "has_seat": reply.has_seat,
    }
    if reply.has_seat:
        taken = f"{pending} of {limit} places are taken"
    else:
        taken = (
            f"no live seat could take it, and {pending} of at most {limit} such stages are waiting already"
        )
    return QueueFull(f"The queue {queue} has no room for {stages}: {taken}", details)
