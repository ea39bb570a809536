"""Check the invariants of a grid, from its server alone, while it works or when it is idle.

One script reads everything at one instant, so no breach is an artifact of reading. The rules are those of
docs/guarantees: a slot has one lease, each step of a running job is in exactly one place, each job has one
state, reservations add up, and no key lives forever.
"""

from __future__ import annotations

import fnmatch
import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

from redis import Redis

from gridq.errors import ConfigError, GridBusy
from gridq.jobs.record import parse_chain
from gridq.protocol import queue_names
from gridq.protocol.states import JobState
from gridq.store import library
from gridq.store.keys import CELERY_PERMANENT, PERMANENT, Keys

MAX_ITEMS = 500_000
"""Items that one audit reads, a key counting as ten: half a second of the server's time."""

CELERY_PREFIXES = ("_kombu", "unacked", "celery")
"""The beginnings of Celery's keys that are not queues.

If the grid's prefix does not end with a colon, other keys under it may belong to a grid with a longer prefix,
or to other programs.
"""


@dataclass(frozen=True, slots=True)
class Check:
    """One rule, and its breaches, each in one line."""

    rule: str
    breaches: tuple[str, ...]


def run_audit(client: Redis, keys: Keys, *, idle: bool = False, max_items: int = MAX_ITEMS) -> list[Check]:
    """Check all rules. Nothing is written.

    `idle`: no job runs, so nothing may be left of jobs. Raises GridBusy if there are more than `max_items` to
    read.
    """
    snapshot = read_snapshot(client, keys, max_items)
    if snapshot is None:
        raise GridBusy(
            "The grid is too large to be read at one instant",
            {
                "expected": f"at most {max_items} items to read, a key counting as ten",
                "fix": "run it when fewer jobs run and earlier results have expired",
            },
        )
    unreadable = tuple(f"{key}: {fault}" for key, fault in sorted(snapshot.unreadable.items()))
    checks = [Check("each key holds what it should", unreadable)]
    try:
        checks += _check_records(_State(snapshot))
    except ValueError as exc:
        checks += [Check("records agree", (f"a record is damaged: {exc}",))]
    checks.append(Check("no key lives forever", tuple(find_keys_without_ttl(client, keys.prefix))))
    if idle:
        checks.append(
            Check(
                "nothing is left of jobs that ran",
                (*_State(snapshot).check_idle(), *_find_stale_wake_ups(client, keys)),
            )
        )
    return checks


def _check_records(state: _State) -> list[Check]:
    """Check the rules for records that must agree. ValueError: a record holds what no script writes."""
    return [
        Check("leases and slots agree, and no seat has more leases than slots", tuple(state.check_leases())),
        Check(
            "the counts of pending stages are right, and the sweep knows their queues",
            tuple(state.check_pending()),
        ),
        Check("each step of a running job is in exactly one place", tuple(state.check_steps())),
        Check("each job has exactly one state", tuple(state.check_states())),
        Check(
            "reserved totals are the sums of the running jobs' reservations",
            tuple(state.check_reservations()),
        ),
    ]


def find_breaches(client: Redis, keys: Keys) -> list[str]:
    """Return the breaches of the rules that hold between any two scripts, one line each."""
    snapshot = read_snapshot(client, keys, MAX_ITEMS)
    assert snapshot is not None
    state = _State(snapshot)
    return [*state.check_leases(), *state.check_pending(), *state.check_steps(), *state.check_reservations()]


def find_keys_without_ttl(client: Redis, prefix: str) -> list[str]:
    """Return the keys under `prefix` that wrongly live forever, sorted and without the prefix.

    Keys of the patterns in `gridq.store.keys`, and Celery's queues, which hold only wake-ups, may live
    forever.
    """
    allowed = [*CELERY_PERMANENT, *(f".{pattern}" for pattern in PERMANENT)]
    found = list(client.scan_iter(f"{prefix}*", count=1000))
    left = []
    for at in range(0, len(found), 1000):
        some: list[bytes] = found[at : at + 1000]
        pipe = client.pipeline(transaction=False)
        for raw in some:
            pipe.pttl(raw)
            pipe.type(raw)
        replies: list[Any] = pipe.execute()
        for raw, ttl, sort in zip(some, replies[::2], replies[1::2], strict=True):
            key = raw.decode("utf-8", "replace")[len(prefix) :]
            named = any(fnmatch.fnmatchcase(key, pattern) for pattern in allowed)
            ours = prefix.endswith(":") or key.startswith((".", *CELERY_PREFIXES))
            if ttl == -1 and ours and not named and not (sort == b"list" and _is_queue(key)):
                left.append(key)
    return sorted(left)


def _is_queue(key: str) -> bool:
    try:
        return queue_names.check_queue_name(key) == key
    except ConfigError:
        return False


def _find_stale_wake_ups(client: Redis, keys: Keys) -> list[str]:
    """Return the queues with wake-ups that a live seat should have answered.

    Wake-ups in a queue without a live seat wait for the next seat that serves it.
    """
    left = []
    served: Any = client.hkeys(keys("concurrency"))
    for raw in client.scan_iter(f"{keys.prefix}*", count=1000, _type="list"):
        key = raw.decode()[len(keys.prefix) :]
        listens = (
            queue_names.PURE if key == queue_names.ROUTER else key
        )  # who serves the one answers the other
        if _is_queue(key) and (key.startswith("seat:") or listens.encode() in served):
            left.append(f"{client.llen(raw)} wake-ups in {key}")
    return sorted(left)


class Snapshot:
    """The content of the server at `now` (ms by its clock): the items of every key that counts.

    `names[kind]` are the keys of one kind, without it: of `slots:m.a` the kind is `slots`, the name `m.a`.
    """

    def __init__(self, reply: list[list[Any]]) -> None:
        self.now = int(reply[0][1])
        pairs = [_text(word) for word in reply[0][2:]]
        self.unreadable = dict(zip(pairs[::2], pairs[1::2], strict=True))
        """Keys that hold something else than they should, and what the server said of each."""
        self.names: dict[str, list[str]] = defaultdict(list)
        self._found: dict[str, list[Any]] = {}
        for key, *items in sorted(reply[1:], key=lambda row: bytes(row[0])):
            kind, _, name = key.decode().partition(":")
            self.names[kind].append(name)
            self._found[key.decode()] = items

    def members(self, *name: str) -> list[str]:
        """Return the members of a set, or of a sorted set whose scores do not count."""
        return [_text(item) for item in self._found.get(":".join(name), ())]

    def scores(self, *name: str) -> dict[str, float]:
        """Return member → score of a sorted set of times."""
        pairs = self._found.get(":".join(name), [])
        return {_text(pairs[at]): float(pairs[at + 1]) for at in range(0, len(pairs), 2)}

    def table(self, *name: str) -> dict[str, str]:
        pairs = self._found.get(":".join(name), [])
        return {_text(pairs[at]): _text(pairs[at + 1]) for at in range(0, len(pairs), 2)}


def read_snapshot(client: Redis, keys: Keys, max_items: int) -> Snapshot | None:
    """Return the grid's records at one instant; None if there are more than `max_items` (audit.lua)."""
    text = f"local K = '{keys.own}'\n" + library.read_lua("audit")
    reply: Any = client.eval(text, 0, max_items)
    return Snapshot(reply) if reply else None


def _text(item: Any) -> str:
    return item.decode("utf-8", "replace") if isinstance(item, bytes) else str(item)


class _State:
    def __init__(self, found: Snapshot) -> None:
        self.found = found
        self.open = set(found.scores("leases"))
        self.who = found.table("lease_info")
        self.delays = found.scores("delays")
        self.deadlines = found.scores("deadlines")
        self.isolated = set(found.members("quarantine"))
        self.live = set(found.names["job"])
        self.stopping = set(found.names["remains"])  # ended, and not all steps are stopped yet
        self.waiting: Counter[str] = Counter()
        for rest in found.names["waiting"]:
            self.waiting.update(found.members("waiting", rest))

    def check_leases(self) -> list[str]:
        """`leases`, `lease_info` and `slots` agree, and no seat has more leases than slots."""
        wrong = []
        holders: dict[str, str] = {}
        for seat in self.found.names["slots"]:
            concurrency = self.found.table("slots", seat)
            holders.update({lease: f"{seat} {slot}" for slot, lease in concurrency.items()})
            most = self.found.table("seat", seat).get("concurrency")
            if len(concurrency) > int(most or 0):
                wrong.append(f"{seat} holds {len(concurrency)} of {most} slots")
        for seat in self.found.names["lost_slots"]:  # of seats that have left
            lost = self.found.table("lost_slots", seat).items()
            name = seat.rpartition(":")[0]
            holders.update({lease: f"{name} {slot}" for slot, lease in lost if lease in self.open})
        every = self.open | set(self.who) | set(holders)
        for name, there in (("leases", self.open), ("lease_info", set(self.who)), ("slots", set(holders))):
            wrong += [f"the lease {lease} is not in {name}" for lease in sorted(every - there)]
        wrong += [f"{lease} of {self.who[lease]} is held by {by}" for lease, by in holders.items()
                  if lease in self.who and not self.who[lease].startswith(by + " ")]  # fmt: skip
        return wrong

    def check_pending(self) -> list[str]:
        """The counts of classes are right, and agents with pending stages are in `ready`."""
        wrong = []
        found = self.found
        sets: dict[tuple[str, str], int] = defaultdict(int)
        agents: dict[tuple[str, str], set[str]] = defaultdict(set)
        for rest in found.names["waiting"]:
            kind, slug, cls, agent = rest.split(":")
            sets[f"{kind}:{slug}", cls] += len(found.members("waiting", rest))
            agents[f"{kind}:{slug}", cls].add(agent)
        counts = {
            (queue, cls): int(count)
            for queue in found.names["classes"]
            for cls, count in found.table("classes", queue).items()
        }
        wrong += [
            f"{' '.join(place)} counts {counts.get(place, 0)}, {sets.get(place, 0)} wait"
            for place in sorted(counts.keys() | sets.keys())
            if counts.get(place, 0) != sets.get(place, 0)
        ]
        ready: dict[tuple[str, str], set[str]] = {}
        for rest in found.names["ready"]:
            queue, _, cls = rest.rpartition(":")
            ready[queue, cls] = set(found.members("ready", rest))
        for agent in found.table("parked_agents"):  # theirs stand aside
            for text in found.members("parked", agent):
                queue, _, cls = text.partition(" ")
                if agent in agents.get((queue, cls), ()):
                    ready.setdefault((queue, cls), set()).add(agent)
        for place in sorted(ready.keys() | agents.keys()):
            listed, there = ready.get(place, set()), agents.get(place, set())
            wrong += [
                f"{agent} has stages in {' '.join(place)} and is not in ready"
                for agent in sorted(there - listed)
            ]
            wrong += [
                f"{agent} is in ready in {' '.join(place)} and has no stage"
                for agent in sorted(listed - there)
            ]
        known_queues = set(found.members("queues"))
        wrong += [
            f"{queue} has stages and the sweep does not know it"
            for queue, _ in counts
            if queue not in known_queues
        ]
        return wrong

    def check_reservations(self) -> list[str]:
        """The reserved total of an agent or team is the sum of its running jobs' reservations."""
        totals: Counter[str] = Counter()
        wrong = []
        for job, reservation in self.found.table("reservations").items():
            agent, team, *amounts = reservation.split(" ")
            for who in (f"a:{agent}", *((f"t:{team}",) if team != "-" else ())):
                for kind, amount in zip(("", "tokens ", "gpu_seconds "), amounts, strict=False):
                    totals[kind + who] += int(amount)
            if job not in self.live:
                wrong.append(f"{job} is gone and has reserved {reservation}")
        found = {who: int(total) for who, total in self.found.table("reserved").items()}
        wrong += [
            f"{who} has {found.get(who, 0)} reserved, its jobs have {totals[who]}"
            for who in sorted(found.keys() | totals.keys())
            if found.get(who, 0) != totals[who]
        ]
        return wrong

    def check_states(self) -> list[str]:
        """A job is queued, running or ended, and has a deadline until it has ended."""
        wrong = []
        found = self.found
        queued, ended = set(found.names["submitted"]), set(found.names["result"])
        inbox, past = set(found.scores("inbox")), found.scores("ended_jobs")
        for job in found.scores("jobs"):
            states = [
                name
                for name, group in (("queued", queued), ("running", self.live), ("ended", ended))
                if job in group
            ]
            # Its keys expire by themselves; the next sweep removes its entries.
            gone = past.get(job, self.deadlines.get(job, found.now + 1)) <= found.now
            if len(states) != 1 and not (not states and gone):
                wrong.append(f"{job} is {' and '.join(states) or 'known but has no state'}")
        wrong += [f"{job} is queued and not in the inbox" for job in sorted(queued - inbox)]
        wrong += [f"{job} is in the inbox and not queued" for job in sorted(inbox - queued)
                  if self.deadlines.get(job, 0) > found.now]  # fmt: skip
        wrong += [f"{job} has no deadline" for job in sorted(queued - self.deadlines.keys())]
        for job in sorted(ended):
            count, state = found.members("result", job)
            if count != "1" or state not in list(JobState) or not JobState(state).is_final:
                wrong.append(f"{job} has {count} ends, the first is {state!r}")
        wrong += [f"the answer of {job} is due and it has not ended"
                  for job in sorted(found.scores("answers").keys() & (queued | self.live))]  # fmt: skip
        return wrong

    def check_steps(self) -> list[str]:
        """Each step of a running job is in exactly one place; `unfinished` counts those yet to end."""
        entries = [*self.waiting, *self.open, *sorted(self.isolated)]
        wrong = [
            f"{entry} of a job that is gone"
            for entry in entries
            if entry.split(":", 1)[0] not in self.live | self.stopping
        ]
        wrong += [f"{job} has no deadline" for job in sorted(self.live - self.deadlines.keys())]
        chained = set(self.found.members("chained"))
        for job in sorted(self.live):
            fields = self.found.table("job", job)
            wrong += self._check_job(job, fields) + self._check_chains(job, fields, chained)
        return wrong

    def _check_chains(self, job: str, fields: dict[str, str], chained: set[str]) -> list[str]:
        """A ready step with fall-backs is in the queue that its chain names, and is in `chained`."""
        wrong = []
        for name, text in fields.items():
            if name.startswith("chain:"):
                n = name[6:]
                at, links = parse_chain(text)
                stands = fields.get(f"pending:{n}", "").partition(" ")[0]
                if stands and stands != links[at]:
                    wrong.append(f"step {n} of {job} is in {stands}, by its chain in {links[at]}")
                if bool(stands) != (f"{job}:{n}" in chained):
                    wrong.append(
                        f"step {n} of {job}: in {stands or 'no queue'}, which does not match `chained`"
                    )
        return wrong

    def _check_job(self, job: str, fields: dict[str, str]) -> list[str]:
        wrong = []
        unfinished = 0
        delayed = self._find_delayed(job, fields)
        for number in range(int(fields["steps"])):
            n = str(number)
            cur = fields.get(f"lease:{n}")
            places = {
                "done": f"output:{n}" in fields,
                "skipped": f"skipped:{n}" in fields,
                "waiting": int(fields.get(f"dependencies:{n}", 0)) > 0 and f"skipped:{n}" not in fields,
                "pending": self.waiting[f"{job}:{n}"] > 0,
                "leased": cur is not None and f"{job}:{n}:{cur}" in self.open,
                "delayed": n in delayed,
                "quarantined": f"{job}:{n}" in self.isolated,
            }
            found = [place for place, is_there in places.items() if is_there]
            nowhere = "working" in fields or self._is_overdue(job, n, fields)
            if len(found) > 1 or (not found and not nowhere):
                wrong.append(f"step {n} of {job} is {' and '.join(found) or 'nowhere'}")
            if places["pending"] != (f"pending:{n}" in fields) or self.waiting[f"{job}:{n}"] > 1:
                wrong.append(
                    f"step {n} of {job}: at {fields.get(f'pending:{n}')}, in {self.waiting[f'{job}:{n}']}"
                )
            if places["quarantined"] != (f"quarantine:{n}" in fields):
                wrong.append(f"step {n} of {job}: in quarantine by one record of two")
            unfinished += not (places["done"] or places["skipped"])
        if unfinished != int(fields["unfinished"]) and "working" not in fields:
            wrong.append(f"{job}: unfinished is {fields['unfinished']}, and {unfinished} steps are")
        return wrong

    def _is_overdue(self, job: str, step: str, fields: dict[str, str]) -> bool:
        """Return whether the next sweep ends the job for its deadline or this step's queue timeout.

        A claim that finds such a step removes it from its pending set, and leaves the rest to the sweep.
        """
        epoch, claims = fields.get(f"epoch:{step}", "0"), fields.get(f"attempts:{step}", "0")
        waited = f"queue_timeout:{job}:{step}:{epoch}.{claims}"
        due = min(self.deadlines.get(job, math.inf), self.delays.get(waited, math.inf))
        return due <= self.found.now

    def _find_delayed(self, job: str, fields: dict[str, str]) -> set[str]:
        """Return the steps that wait for the delay of a Retry."""
        found = set()
        for member in self.delays:
            kind, name, number, what = member.split(":", 3)
            if kind == "retry" and name == job and fields.get(f"scope_epoch:{number}", "0") == what:
                steps = fields[f"scope:{number}"].split(" ", 3)[3].partition(";")[0]
                found |= {pair.split("=")[0] for pair in steps.split() if pair.endswith("=0")}
        return {n for n in found if f"skipped:{n}" not in fields}

    def check_idle(self) -> list[str]:
        found = self.found
        left = [f"the lease {lease}" for lease in sorted(self.open)]
        left += [f"the stage {entry} is pending" for entry in sorted(self.waiting)]
        left += [f"{job} is in the inbox" for job in sorted(found.scores("inbox"))]
        left += [f"{job} runs" for job in sorted(self.live)]
        left += [f"the deadline of {job}" for job in sorted(self.deadlines)]
        left += [f"the delay {member}" for member in sorted(self.delays)]
        left += [f"the answer of {job} is due" for job in sorted(found.scores("answers"))]
        left += [f"{job} has reserved {what}" for job, what in sorted(found.table("reservations").items())]
        left += [f"{agent} is parked" for agent in sorted(found.table("parked_agents"))]
        left += [f"{entry} is in quarantine" for entry in sorted(found.members("quarantine"))]
        return left
