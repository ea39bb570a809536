"""What must hold in a grid, read from its server alone: on a grid at work, and on one that is at rest.

Everything is read by one script at one instant, so what is found is no accident of the reading. The rules are
those of docs/guarantees: a slot is promised once, each step of a running job is in exactly one place, each
job has one state, what is held for jobs is what was promised, and nothing lives for ever.
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
from gridq.store.keys import CELERY_PERMANENT, PERMANENT, Keys
from gridq.store.snapshot import Snapshot, read

MOST_ITEMS = 500_000
"""Items that are read at one instant at most, a key counting as ten: half a second of the server's time."""


CELERYS = ("_kombu", "unacked", "celery")
"""How keys of Celery's begin that are no queues. What else stands under a prefix that does not end with a
colon may be another grid's, whose prefix goes on, or, under the empty one, other programs'.
"""


@dataclass(frozen=True, slots=True)
class Check:
    """One rule, in words, and what breaks it, each in one line."""

    rule: str
    breaches: tuple[str, ...]


def audit(client: Redis, keys: Keys, *, idle: bool = False, most: int = MOST_ITEMS) -> list[Check]:
    """Every rule with what breaks it now. With `idle` the grid is said to be at rest: nothing may be left of
    jobs that ran. It only reads.

    GridBusy: there are more than `most` items to read.
    """
    snapshot = read(client, keys, most)
    if snapshot is None:
        raise GridBusy(
            "The grid is too large to look at all of it at one instant",
            {
                "expected": f"at most {most} items to read, a key counting as ten",
                "fix": "run it when fewer jobs run and the results of earlier ones have expired",
            },
        )
    state = _State(snapshot)
    checks = [
        Check("leases, slots and holders agree; no seat has more than its slots", tuple(state.leases())),
        Check("classes count what stands in them, and the sweep looks there", tuple(state.pending())),
        Check("each step of a running job is in exactly one place", tuple(state.steps())),
        Check("each job has exactly one state", tuple(state.states())),
        Check("what is promised is what running jobs hold", tuple(state.money())),
        Check("no key lives for ever", tuple(keys_without_ttl(client, keys.prefix))),
    ]
    if idle:
        checks.append(Check("nothing is left of jobs that ran", (*state.left(), *_wake_ups(client, keys))))
    return checks


def broken(client: Redis, keys: Keys) -> list[str]:
    """What must hold between any two scripts and does not, each as one line; empty where all is well."""
    snapshot = read(client, keys, MOST_ITEMS)
    assert snapshot is not None
    state = _State(snapshot)
    return [*state.leases(), *state.pending(), *state.steps(), *state.money()]


def keys_without_ttl(client: Redis, prefix: str) -> list[str]:
    """The keys under `prefix` that live for ever and may not, without the prefix, sorted.

    Allowed are the patterns of `gridq.store.keys` and Celery's queues, which hold only wake-ups.
    """
    allowed = [*CELERY_PERMANENT, *(f".{pattern}" for pattern in PERMANENT)]
    found = list(client.scan_iter(f"{prefix}*", count=1000))
    left = []
    for at in range(0, len(found), 1000):
        some: list[bytes] = found[at : at + 1000]
        look = client.pipeline(transaction=False)
        for raw in some:
            look.pttl(raw)
            look.type(raw)
        replies: list[Any] = look.execute()
        for raw, ttl, sort in zip(some, replies[::2], replies[1::2], strict=True):
            key = raw.decode("utf-8", "replace")[len(prefix) :]
            named = any(fnmatch.fnmatchcase(key, pattern) for pattern in allowed)
            ours = prefix.endswith(":") or key.startswith((".", *CELERYS))
            if ttl == -1 and ours and not named and not (sort == b"list" and _is_queue(key)):
                left.append(key)
    return sorted(left)


def _is_queue(key: str) -> bool:
    try:
        return queue_names.check_queue_name(key) == key
    except ConfigError:
        return False


def _wake_ups(client: Redis, keys: Keys) -> list[str]:
    """Wake-ups that nobody has answered though somebody should. Any list that is a queue's is one of wake-ups;
    where no live seat serves it some stand for the next one that does.
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


class _State:
    def __init__(self, found: Snapshot) -> None:
        self.found = found
        self.open = set(found.scores("leases"))
        self.who = found.table("lease_info")
        self.delays = found.scores("delays")
        self.deadlines = found.scores("deadlines")
        self.isolated = set(found.members("quarantine"))
        self.live = set(found.names["job"])
        self.waiting: Counter[str] = Counter()
        for rest in found.names["waiting"]:
            self.waiting.update(found.members("waiting", rest))

    def leases(self) -> list[str]:
        """`leases`, `who` and `held` say the same, and no seat holds more than its slots."""
        wrong = []
        held: dict[str, str] = {}
        for seat in self.found.names["slots"]:
            concurrency = self.found.table("slots", seat)
            held.update({lease: f"{seat} {slot}" for slot, lease in concurrency.items()})
            most = self.found.table("seat", seat).get("concurrency")
            if len(concurrency) > int(most or 0):
                wrong.append(f"{seat} holds {len(concurrency)} of {most} slots")
        every = self.open | set(self.who) | set(held)
        for name, there in (("leases", self.open), ("lease_info", set(self.who)), ("slots", set(held))):
            wrong += [f"the lease {lease} is not in {name}" for lease in sorted(every - there)]
        wrong += [f"{lease} of {self.who[lease]} is held by {by}" for lease, by in held.items()
                  if lease in self.who and not self.who[lease].startswith(by + " ")]  # fmt: skip
        return wrong

    def pending(self) -> list[str]:
        """The classes count what stands in them, and agents are listed where they have something."""
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
                f"{agent} has stages in {' '.join(place)} and no turn" for agent in sorted(there - listed)
            ]
            wrong += [
                f"{agent} has a turn in {' '.join(place)} and no stage" for agent in sorted(listed - there)
            ]
        looked = set(found.members("queues"))
        wrong += [f"{queue} waits and no sweep looks" for queue, _ in counts if queue not in looked]
        return wrong

    def money(self) -> list[str]:
        """What agents and teams are promised is the sum of what their running jobs hold."""
        promised: Counter[str] = Counter()
        wrong = []
        for job, hold in self.found.table("reservations").items():
            agent, team, money, *tokens = hold.split(" ")
            for who in (f"a:{agent}", *((f"t:{team}",) if team != "-" else ())):
                promised[who] += int(money)
                promised[f"tokens {who}"] += sum(map(int, tokens))
            if job not in self.live:
                wrong.append(f"{job} is no more and holds {hold}")
        found = {who: int(total) for who, total in self.found.table("reserved").items()}
        wrong += [
            f"{who} is promised {found.get(who, 0)}, its jobs hold {promised[who]}"
            for who in sorted(found.keys() | promised.keys())
            if found.get(who, 0) != promised[who]
        ]
        return wrong

    def states(self) -> list[str]:
        """A job is in the inbox, runs or has ended, one of them, and is looked at until it has ended."""
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
            # Its keys expire by themselves: its entries are taken out by the next sweep.
            gone = past.get(job, self.deadlines.get(job, found.now + 1)) <= found.now
            if len(states) != 1 and not (not states and gone):
                wrong.append(f"{job} is {' and '.join(states) or 'known and has no state'}")
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

    def steps(self) -> list[str]:
        """Each step of a running job is in exactly one place; `left` counts those that are not finished."""
        entries = [*self.waiting, *self.open, *sorted(self.isolated)]
        wrong = [
            f"{entry} of a job that is no more"
            for entry in entries
            if entry.split(":", 1)[0] not in self.live
        ]
        wrong += [f"{job} has no deadline" for job in sorted(self.live - self.deadlines.keys())]
        chained = set(self.found.members("chained"))
        for job in sorted(self.live):
            fields = self.found.table("job", job)
            wrong += self._job(job, fields) + self._chains(job, fields, chained)
        return wrong

    def _chains(self, job: str, fields: dict[str, str], chained: set[str]) -> list[str]:
        """A step with fall-backs stands at the one of its queues that it says, and is looked at again."""
        wrong = []
        for name, text in fields.items():
            if name.startswith("chain:"):
                n = name[6:]
                at, links = parse_chain(text)
                stands = fields.get(f"pending:{n}", "").partition(" ")[0]
                if stands and stands != links[at]:
                    wrong.append(f"step {n} of {job} stands in {stands}, by its chain in {links[at]}")
                if bool(stands) != (f"{job}:{n}" in chained):
                    wrong.append(
                        f"step {n} of {job}: at {stands or 'none'}, and its chain is looked at or not"
                    )
        return wrong

    def _job(self, job: str, fields: dict[str, str]) -> list[str]:
        wrong = []
        unfinished = 0
        delayed = self._delayed(job, fields)
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
            if len(found) != 1 and (found or not self._overdue(job, n, fields)):
                wrong.append(f"step {n} of {job} is {' and '.join(found) or 'nowhere'}")
            if places["pending"] != (f"pending:{n}" in fields) or self.waiting[f"{job}:{n}"] > 1:
                wrong.append(
                    f"step {n} of {job}: at {fields.get(f'pending:{n}')}, in {self.waiting[f'{job}:{n}']}"
                )
            if places["quarantined"] != (f"quarantine:{n}" in fields):
                wrong.append(f"step {n} of {job}: in quarantine by one word of two")
            unfinished += not (places["done"] or places["skipped"])
        if unfinished != int(fields["unfinished"]):
            wrong.append(f"{job}: left {fields['unfinished']}, unfinished {unfinished}")
        return wrong

    def _overdue(self, job: str, step: str, fields: dict[str, str]) -> bool:
        """Whether the next sweep ends the job for its deadline or for this step's queue timeout. A claim that
        comes upon such a step first takes it out of its pending set, and leaves the rest to the sweep.
        """
        waited = f"queue_timeout:{job}:{step}:{fields.get(f'epoch:{step}', '0')}.{fields.get(f'attempts:{step}', '0')}"
        due = min(self.deadlines.get(job, math.inf), self.delays.get(waited, math.inf))
        return due <= self.found.now

    def _delayed(self, job: str, fields: dict[str, str]) -> set[str]:
        """The steps that a Retry's delay holds back."""
        found = set()
        for member in self.delays:
            kind, name, number, what = member.split(":", 3)
            if kind == "retry" and name == job and fields.get(f"scope_epoch:{number}", "0") == what:
                steps = fields[f"scope:{number}"].split(" ", 3)[3].partition(";")[0]
                found |= {pair.split("=")[0] for pair in steps.split() if pair.endswith("=0")}
        return {n for n in found if f"skipped:{n}" not in fields}

    def left(self) -> list[str]:
        """What a grid at rest has none of."""
        found = self.found
        left = [f"the lease {lease}" for lease in sorted(self.open)]
        left += [f"the stage {entry} is pending" for entry in sorted(self.waiting)]
        left += [f"{job} is in the inbox" for job in sorted(found.scores("inbox"))]
        left += [f"{job} runs" for job in sorted(self.live)]
        left += [f"the deadline of {job}" for job in sorted(self.deadlines)]
        left += [f"the delay {member}" for member in sorted(self.delays)]
        left += [f"the answer of {job} is due" for job in sorted(found.scores("answers"))]
        left += [f"{job} holds {what}" for job, what in sorted(found.table("reservations").items())]
        left += [f"{agent} is parked" for agent in sorted(found.table("parked_agents"))]
        left += [f"{entry} is in quarantine" for entry in sorted(found.members("quarantine"))]
        return left
