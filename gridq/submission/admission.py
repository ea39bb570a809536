"""Admission: from a graph as it was sent to a plan in Redis, or to one error and nothing written.

Parsing, resolving, splitting and placing are pure and come first; then one script writes all or nothing.
Router, client and gateway admit by the same `Admission`, each in its own process.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from gridq.config.settings import Settings
from gridq.errors import JobBudgetExceeded, NoLiveSeat, QueueFull, UnknownStage
from gridq.graph.catalogue import Catalogue, StageSpec
from gridq.graph.nodes import Graph
from gridq.graph.plan import Plan
from gridq.jobs import idempotency
from gridq.jobs.idempotency import Fingerprint
from gridq.jobs.record import (
    JobOptions,
    get_budget_micro_dollars,
    format_chain,
    parse_chain,
    get_deadline_ms,
    choose_job_name,
    build_plan_fields,
    get_queue_timeout_ms,
)
from gridq.limits import accounts, api_keys
from gridq.profiles.profile import Profile
from gridq.protocol.meters import UNKNOWN, Expects
from gridq.protocol.models import Advertisement
from gridq.protocol.money import dollars
from gridq.seats import access, registry
from gridq.store import values
from gridq.store.admitting import Word
from gridq.store.admitting import arguments as arguments_of
from gridq.store.scripts import Scripts
from gridq.submission.deadline_check import REFUSALS, Foresight, LeftOut, Start, starts
from gridq.submission.estimates import Guess, expected, guesses, told
from gridq.submission.matching import Wanted, unfit, wanted
from gridq.submission.planning import compile_text, local_catalogue
from gridq.submission.seat_filters import kept_apart
from gridq.telemetry import narration

PLANS_KEPT = 256
REFRESH = 2.0
LOOK = 1.0
"""Seconds for which what the live seats say of themselves is not read again. A seat that joins within them is
to a job what one is that joins just after its admission: its runner refuses what it cannot do.
"""


@dataclass(frozen=True, slots=True)
class Split:
    """A plan as `admit` writes it."""

    answer: int
    steps: int
    stages: int
    fields: list[str | int]
    ready: list[int]
    needs: list[str]
    wanted: tuple[Wanted, ...]
    name: str = "graph"
    micro_dollars: int = 0
    starts: tuple[Start, ...] = ()
    guesses: tuple[Guess, ...] = ()


class Admission:
    """Splits graphs and admits them. One object a process; threads may share it."""

    def __init__(self, scripts: Scripts, config: Settings, profiles: Mapping[str, Profile]) -> None:
        self.scripts = scripts
        self.config = config
        self.profiles = profiles
        self._local = local_catalogue(config, profiles)
        self._grid = self._local
        self._read_at = 0.0
        self._plans: OrderedDict[bytes, Split] = OrderedDict()
        self._seats: tuple[float, Sequence[Advertisement]] = (-math.inf, ())
        self.foresight = Foresight(scripts, config)

    def split(self, graph: bytes) -> Split:
        """The plan of a graph's JSON text; GraphError where it is wrong. Equal texts are split once."""
        known = self._known(graph)
        if known is not None:
            return known
        try:
            compiled = self._compile(graph, self._grid)
        except UnknownStage:  # perhaps a machine that joined since offers it
            if time.monotonic() - self._read_at < REFRESH:
                raise
            self._refresh()
            compiled = self._compile(graph, self._grid)
        source, plan = compiled
        fields, ready, needs = build_plan_fields(plan)
        split = Split(
            plan.answer,
            len(plan.steps),
            sum(len(step.ops) for step in plan.steps),
            fields,
            ready,
            needs,
            wanted(plan, self.profiles),
            choose_job_name(source, plan),
            sum(step.micro_dollars for step in plan.steps),
            starts(plan, ready),
            guesses(plan, self.profiles),
        )
        self._plans[graph] = split
        while len(self._plans) > PLANS_KEPT:
            self._plans.popitem(last=False)
        return split

    def _known(self, graph: bytes) -> Split | None:
        """The split of a text that was split before, one of the last PLANS_KEPT that were asked for."""
        split = self._plans.get(graph)
        if split is not None:
            with suppress(KeyError):  # another thread has put it out meanwhile
                self._plans.move_to_end(graph)
        return split

    def _refresh(self) -> None:
        offered = registry.published_stages(self.scripts.client, self.scripts.keys)
        self._grid = self._local.extended(map(StageSpec.from_json, offered))
        self._plans.clear()
        self._read_at = time.monotonic()

    def _compile(self, text: bytes, catalogue: Catalogue) -> tuple[Graph, Plan]:
        graph, _, plan = compile_text(text, catalogue, self.config, self.profiles)
        return graph, plan

    def admit(
        self,
        job: str,
        split: Split,
        value: bytes,
        options: JobOptions,
        *,
        celery: bool = False,
        deadline: bool = True,
        key: str = "",
        body: Fingerprint | None = None,
    ) -> str:
        """Write the job; its id, or that of the job which has its idempotency key already.

        `deadline` False keeps the one that the inbox holds. `key` is the id of a key that was verified.
        NoLiveSeat, QueueFull, DeadlineUnreachable, QuotaExceeded (JobBudgetExceeded too), AuthError,
        IdempotencyConflict: nothing was written. What the first four and GridFull say of the wait:
        `gridq.submission.live_forecast`.
        """
        left_out: LeftOut = {}
        expects = self._expects(split, value)
        begin = [replace(start, expects=expects.get(start.step, UNKNOWN)) for start in split.starts]
        try:
            if split.wanted or options.pin is not None or options.avoid:
                left_out = self._left_out(job, split, options, key)
            self.foresight.check(job, begin, options, left_out, queued=not deadline)
            return self._write(
                job, split, value, options, left_out,
                expects=expects, celery=celery, deadline=deadline, key=key, body=body or Fingerprint(),
            )  # fmt: skip
        except REFUSALS as exc:
            if values.is_link(value):
                self.scripts.client.unlink(self.scripts.keys("value", value[1:].decode()))
            raise self.foresight.told(exc, begin, options, left_out) from None

    def _write(
        self, job: str, split: Split, value: bytes, options: JobOptions, left_out: LeftOut, *,
        expects: Mapping[int, Expects], celery: bool, deadline: bool, key: str, body: Fingerprint,
    ) -> str:  # fmt: skip
        """`admit`, where there is nothing more to find out."""
        arguments = self._arguments(
            job, split, value, options, left_out,
            expects=expects, celery=celery, deadline=deadline, key=key, body=body,
        )  # fmt: skip
        reply = self.scripts.admit(arguments)
        if reply[0] == "noseat":
            raise self._no_seat(reply[1].split("|"))
        if reply[0] == "barred":
            raise access.barred(reply, options.agent)
        if reply[0] == "key":
            raise api_keys.refused(reply[1], key)
        if reply[0] == "queue":
            raise _queue_full(reply)
        if reply[0] == "quota":
            raise accounts.exceeded(reply, self._zone())
        if reply[0] == "conflict":
            raise idempotency.build_conflict_error(reply[1], keyed=reply[1] != job)
        if reply[0] == "same":
            return reply[1]
        if reply[0] == "ok":
            _tell(job, split, options, reply)
        return job

    def at_once(
        self, job: str, graph: bytes, value: bytes, options: JobOptions, key: str
    ) -> tuple[Word, ...] | None:
        """The arguments of `admit.lua` for a new job of which nothing is to be found out first: its graph is
        split already, and it asks for no seats and no time of its own. Else None.

        Who has the script reply `ok` calls `written`; whatever else it says, nothing was written that `admit`
        would not find.
        """
        split = self._known(graph)
        asks = (options.pin, options.deadline, options.queue_timeout, options.budget_cents)
        if split is None or split.wanted or options.avoid or any(each is not None for each in asks):
            return None
        if options.idempotency_key is not None or len(value) > self.config.inline_value:
            return None
        expects = self._expects(split, value)
        return self._arguments(
            job, split, value, options, {}, expects=expects, celery=False, deadline=True, key=key, body=Fingerprint()
        )

    def written(self, job: str, graph: bytes, options: JobOptions, reply: Sequence[str]) -> None:
        """Tell of a job that was written by the arguments of `at_once`."""
        split = self._known(graph)
        if split is not None:
            _tell(job, split, options, reply)

    def _arguments(
        self, job: str, split: Split, value: bytes, options: JobOptions, left_out: LeftOut, *,
        expects: Mapping[int, Expects], celery: bool, deadline: bool, key: str, body: Fingerprint,
    ) -> tuple[Word, ...]:  # fmt: skip
        """What `admit.lua` is called with."""
        fields = [*split.fields, *told(expects)]
        if left_out:
            links = _links_of(split)
            apart = [_apart(step, links[step], names) for step, names in left_out.items()]
            fields = [*fields, *(word for words in apart for word in words)]
        if options.prefer is not None:
            fields = [*fields, "prefer", options.prefer]
        budget = get_budget_micro_dollars(options)
        if budget is not None:
            if split.micro_dollars > budget:
                raise _over_budget(budget, split.micro_dollars)
            fields = [*fields, "bud", budget]
        return arguments_of(
            job,
            agent=options.agent,
            prio=options.prio,
            get_deadline_ms=get_deadline_ms(options, self.config) if deadline else None,
            ttl_ms=int(self.config.result_ttl * 1000),
            celery=celery,
            stream=options.stream,
            wait=options.wait_for_seat,
            value=value,
            answer=split.answer,
            steps=split.steps,
            needs=split.needs,
            ready=split.ready,
            fields=fields,
            name=options.name or split.name,
            session=options.session or "",
            key=key,
            micro_dollars=split.micro_dollars,
            stages=split.stages,
            idempotency=body.key,
            body=body.digest,
            get_queue_timeout_ms=get_queue_timeout_ms(options, self.config),
        )

    def _left_out(self, job: str, split: Split, options: JobOptions, key: str) -> LeftOut:
        """Step → the seats that do not meet its demand or that its submitter does not want. NoLiveSeat."""
        read_at, seats = self._seats
        known = time.monotonic() - read_at < LOOK
        if not known:
            read_at = time.monotonic()
            seats = registry.seats(self.scripts.client, self.scripts.keys)
            self._seats = read_at, seats
        try:
            seats = access.lent(self.scripts, job, seats, options, key)
            found = kept_apart(_links_of(split), seats, options)
            for want in split.wanted:
                lacking = unfit(want, seats, self.profiles, wait=options.wait_for_seat)
                apart = found.get(want.step) or [[] for _ in lacking]
                both = zip(apart, lacking, strict=True)
                found[want.step] = [list(dict.fromkeys([*names, *more])) for names, more in both]
        except NoLiveSeat:
            if not known:
                raise
            self._seats = (-math.inf, ())  # perhaps one has joined since
            return self._left_out(job, split, options, key)
        return {step: tuple(map(",".join, apart)) for step, apart in found.items() if any(apart)}

    def _expects(self, split: Split, value: bytes) -> dict[int, Expects]:
        """What its steps are estimated to use, of an input that may be a link to it."""
        length = len(value)
        if split.guesses and values.is_link(value):
            length = int(self.scripts.client.strlen(self.scripts.keys("value", value[1:].decode())))
        return expected(split.guesses, value, length)

    def _zone(self) -> str:
        """The time zone of the routers' calendar, in which a refusal says when the window turns."""
        zone = self.scripts.client.hget(self.scripts.keys("calendar"), "zone")
        return zone.decode() if isinstance(zone, bytes) else self.config.timezone

    def _no_seat(self, links: Sequence[str]) -> NoLiveSeat:
        near = [registry.nearest(self.scripts.client, self.scripts.keys, queue) for queue in links]
        return NoLiveSeat(
            f"No live seat serves {' or '.join(links)}",
            {
                "path": links[0],
                "queue": links[0],
                **({"queues": list(links)} if len(links) > 1 else {}),
                "reason": "; ".join(dict.fromkeys(near)),
                "fix": "start a worker that serves it, or submit with wait_for_seat",
            },
        )


def _over_budget(budget: int, needed: int) -> JobBudgetExceeded:
    """A job is estimated at more micro-dollars than its submitter allows."""
    return JobBudgetExceeded(
        f"The job is estimated at {dollars(needed)}, and may cost {dollars(budget)}",
        {
            "path": "budget_cents",
            "limit": budget,
            "needed": needed,
            "fix": f"submit it with a budget_cents of {needed / 10_000:g} or more",
        },
    )


def _tell(job: str, split: Split, options: JobOptions, reply: Sequence[str]) -> None:
    name = options.name or split.name
    narration.tell("job admitted", job=job, name=name, agent=options.agent, stages=split.stages)
    for other in reply[1:]:
        narration.tell("job gave way", job=other, by=job)


def _links_of(split: Split) -> dict[int, list[str]]:
    """Step → its queue and its fall-backs."""
    found: dict[int, list[str]] = {}
    for name, text in zip(split.fields[::2], split.fields[1::2], strict=True):
        sort, _, step = str(name).partition(":")
        if sort == "h":
            found[int(step)] = [str(text).partition(" ")[0]]
        elif sort == "fb":  # it comes behind its header
            found[int(step)] = parse_chain(str(text))[1]
    return found


def _apart(step: int, links: Sequence[str], unfit: Sequence[str]) -> list[str]:
    """The fields that keep seats from a step, now and whenever it starts again: by each of its queues."""
    chain = [f"fb:{step}", format_chain(links, unfit)] if len(links) > 1 else []
    return [*chain, f"x:{step}", unfit[0], f"u:{step}", unfit[0]] if unfit[0] else chain


def _queue_full(reply: Sequence[str]) -> QueueFull:
    """The refusal that a script's reply stands for: queue, its name, pending, limit, needed."""
    queue = reply[1]
    pending, limit, needed = map(int, reply[2:5])
    what = "a stage" if needed == 1 else f"the {needed} stages that are ready at once"
    return QueueFull(
        f"The queue {queue} has no room for {what}: {pending} stand in it, at most {limit} may",
        {"path": queue, "queue": queue, "pending": pending, "limit": limit, "needed": needed},
    )
