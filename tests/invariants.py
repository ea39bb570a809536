"""What must hold between any two scripts, read from the server alone."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import redis

from gridq.store.keys import Keys


def broken(client: redis.Redis, keys: Keys) -> list[str]:
    """The invariants that do not hold now, each as one line; empty where all is well."""
    state = _State(client, keys)
    return [*state.leases(), *state.pending(), *state.jobs(), *state.money()]


class _State:
    def __init__(self, client: redis.Redis, keys: Keys) -> None:
        self.keys = keys
        self.names = sorted(
            key.decode()[len(keys.own) :] for key in client.scan_iter(f"{keys.own}*", count=5000)
        )
        self.by_kind: dict[str, list[str]] = defaultdict(list)
        reads = client.pipeline(transaction=True)
        wanted = []
        for name in self.names:
            kind, _, rest = name.partition(":")
            self.by_kind[kind].append(rest)
            if kind in ("leases", "delays", "deadlines", "w", "rdy"):
                reads.zrange(keys.own + name, 0, -1)
            elif kind in ("queues", "park"):
                reads.smembers(keys.own + name)
            elif kind in ("who", "held", "seat", "cls", "job", "holds", "promised", "parked"):
                reads.hgetall(keys.own + name)
            else:
                continue
            wanted.append(name)
        self.found: dict[str, Any] = dict(zip(wanted, reads.execute(), strict=True))
        self.open = set(self.members("leases"))
        self.who = self.table("who")
        self.delays = self.members("delays")
        self.deadlines = set(self.members("deadlines"))
        self.waiting: Counter[str] = Counter()

    def members(self, *name: str) -> list[str]:
        return [item.decode() for item in self.found.get(":".join(name), ())]

    def table(self, *name: str) -> dict[str, str]:
        found = self.found.get(":".join(name), {})
        return {key.decode(): value.decode("utf-8", "replace") for key, value in found.items()}

    def leases(self) -> list[str]:
        """`leases`, `who` and `held` say the same, and no seat holds more than its lanes."""
        wrong = []
        held: dict[str, str] = {}
        for seat in self.by_kind["held"]:
            lanes = self.table("held", seat)
            held.update({lease: f"{seat} {lane}" for lane, lease in lanes.items()})
            most = self.table("seat", seat).get("lanes")
            if len(lanes) > int(most or 0):
                wrong.append(f"{seat} holds {len(lanes)} of {most} lanes")
        if not self.open == set(self.who) == set(held):
            wrong.append(f"leases {self.open}, who {set(self.who)}, held {set(held)}")
        wrong += [f"{lease} of {self.who[lease]} is held by {by}" for lease, by in held.items()
                  if not self.who.get(lease, "").startswith(by + " ")]  # fmt: skip
        return wrong

    def pending(self) -> list[str]:
        """The classes count what stands in them, and agents are listed where they have something."""
        wrong = []
        sets: dict[tuple[str, str], int] = defaultdict(int)
        agents: dict[tuple[str, str], set[str]] = defaultdict(set)
        for rest in self.by_kind["w"]:
            kind, slug, cls, agent = rest.split(":")
            members = self.members("w", rest)
            self.waiting.update(members)
            sets[f"{kind}:{slug}", cls] += len(members)
            agents[f"{kind}:{slug}", cls].add(agent)
        counts = {
            (queue, cls): int(count)
            for queue in self.by_kind["cls"]
            for cls, count in self.table("cls", queue).items()
        }
        if counts != dict(sets):
            wrong.append(f"classes count {counts}, there are {dict(sets)}")
        ready = {}
        for rest in self.by_kind["rdy"]:
            queue, _, cls = rest.rpartition(":")
            ready[queue, cls] = set(self.members("rdy", rest))
        for agent in self.table("parked"):  # theirs stand aside
            for place in self.members("park", agent):
                queue, _, cls = place.partition(" ")
                if agent in agents.get((queue, cls), ()):
                    ready.setdefault((queue, cls), set()).add(agent)
        if ready != dict(agents):
            wrong.append(f"ready agents {ready}, with stages {dict(agents)}")
        listed = set(self.members("queues"))
        wrong += [f"{queue} waits and no sweep looks" for queue, _ in counts if queue not in listed]
        return wrong

    def money(self) -> list[str]:
        """What agents and teams are promised is the sum of what their running jobs hold."""
        promised: Counter[str] = Counter()
        wrong = []
        for job, hold in self.table("holds").items():
            agent, team, left = hold.split(" ")
            promised[f"a:{agent}"] += int(left)
            if team != "-":
                promised[f"t:{team}"] += int(left)
            if job not in self.by_kind["job"]:
                wrong.append(f"{job} is no more and holds {hold}")
        found = {who: int(sum_) for who, sum_ in self.table("promised").items()}
        if found != dict(promised):
            wrong.append(f"promised {found}, held {dict(promised)}")
        return wrong

    def jobs(self) -> list[str]:
        """Each step of a running job is in exactly one place; `left` counts those that are not finished."""
        live = set(self.by_kind["job"])
        entries = [*self.waiting, *self.open]
        wrong = [
            f"{entry} of a job that is no more" for entry in entries if entry.split(":", 1)[0] not in live
        ]
        for job in live:
            wrong += self._job(job, self.table("job", job))
        return wrong

    def _job(self, job: str, fields: dict[str, str]) -> list[str]:
        wrong = []
        unfinished = 0
        delayed = self._delayed(job, fields)
        for number in range(int(fields["n"])):
            n = str(number)
            cur = fields.get(f"cur:{n}")
            places = {
                "done": f"o:{n}" in fields,
                "skipped": f"k:{n}" in fields,
                "waiting": int(fields.get(f"p:{n}", 0)) > 0 and f"k:{n}" not in fields,
                "pending": self.waiting[f"{job}:{n}"] > 0,
                "leased": cur is not None and f"{job}:{n}:{cur}" in self.open,
                "delayed": n in delayed,
            }
            found = [place for place, is_there in places.items() if is_there]
            if len(found) != 1:
                wrong.append(f"step {n} of {job} is {found}")
            if places["pending"] != (f"at:{n}" in fields) or self.waiting[f"{job}:{n}"] > 1:
                wrong.append(
                    f"step {n} of {job}: at {fields.get(f'at:{n}')}, in {self.waiting[f'{job}:{n}']}"
                )
            unfinished += not (places["done"] or places["skipped"])
        if unfinished != int(fields["left"]):
            wrong.append(f"{job}: left {fields['left']}, unfinished {unfinished}")
        if job not in self.deadlines:
            wrong.append(f"{job} has no deadline")
        return wrong

    def _delayed(self, job: str, fields: dict[str, str]) -> set[str]:
        """The steps that a Retry's delay holds back."""
        found = set()
        for member in self.delays:
            kind, name, number, what = member.split(":", 3)
            if kind == "r" and name == job and fields.get(f"se:{number}", "0") == what:
                steps = fields[f"sc:{number}"].split(" ", 3)[3].partition(";")[0]
                found |= {pair.split("=")[0] for pair in steps.split() if pair.endswith("=0")}
        return {n for n in found if f"k:{n}" not in fields}
