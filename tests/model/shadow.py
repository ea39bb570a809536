"""Compute all charges from the calls alone, and compare them with the server."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from gridq.protocol.meters import parse_budget
from gridq.store.replies import Claim, read_claim
from tests.unit.store.plans import Grid

TEAM = "team"


class Shadow:
    """The expected accounts. `limits`: the micro-dollars of each agent and of TEAM; None for no limits."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.seats: dict[str, str] = {}  # lease → the seat that ran it
        self.charged: dict[str, int] = {}  # lease → the charge to its seat
        self.recorded: Counter[str] = Counter()  # job:step:epoch
        self.settled: set[str] = set()
        self.rows: dict[str, list[str]] = defaultdict(list)
        self.pieces: dict[str, list[str]] = defaultdict(list)
        self.streamed: dict[str, str] = {}  # job:step:epoch → the attempt that emitted the first piece
        self.limits: dict[str, int | None] | None = None
        self.agents: dict[str, str] = {}  # jobs under limits
        self.reservations: dict[str, int] = {}
        self.spent: Counter[str] = Counter()
        self.celery: set[str] = set()
        self.unanswered: set[str] = set()
        self.keys: dict[str, tuple[str, str]] = {}  # idempotency key → its job, the body

    def after(self, script: str, args: tuple[Any, ...], reply: Any) -> None:
        """Record the effect of a call."""
        if script == "claim":
            self._claimed(str(args[0]), reply)
        elif script == "complete":
            self._completed(args, reply)
        elif script == "fail":
            lease, used, row = args[0], _micro(args[3]), args[5]
            self._charge(lease, used)
            if reply != b"fenced" and row:
                self.rows[lease.split(":")[0]].append(row)
        elif script == "emit" and reply == [1]:
            self._emitted(args)

    def is_allowed(self, agent: str, micro: int) -> bool:
        """Return whether a job of this cost must be admitted."""
        for name in (agent, TEAM):
            limit = (self.limits or {}).get(name)
            if limit is not None and self.spent[name] + self.sum_reservations(name) + max(micro, 1) > limit:
                return False
        return True

    def admitted(self, job: str, agent: str, micro: int, *, celery: bool, key: str, body: str) -> None:
        if celery:
            self.celery.add(job)
        if key:
            self.keys[key] = job, body
        if self.limits is not None:
            self.agents[job] = agent
            if micro:
                self.reservations[job] = micro

    def sum_reservations(self, name: str) -> int:
        return sum(hold for job, hold in self.reservations.items() if name in (self.agents[job], TEAM))

    def ended(self, job: str) -> None:
        self.reservations.pop(job, None)
        if job in self.celery:
            self.unanswered.add(job)

    def find_differences(self, budgets: dict[str, int | None]) -> list[str]:
        """Return the differences between the server's accounts and the expected ones."""
        client, keys = self.grid.client, self.grid.keys
        wrong = [f"{stage} is recorded {n} times" for stage, n in self.recorded.items() if n > 1]
        pipe = client.pipeline(transaction=True)
        pipe.hgetall(keys("lease_info"))
        pipe.hgetall(keys("reservations"))
        pipe.hgetall(keys("spent", "0"))
        pipe.zrange(keys("answers"), 0, -1)
        for seat in budgets:
            pipe.hget(keys("seat", seat), "own")
        who, holds, spent, answers, *left = pipe.execute()
        reserved: Counter[str] = Counter()
        for by in who.values():
            seat, _, hold, *_ = by.decode().split(" ")
            reserved[seat] += int(hold)
        paid: Counter[str] = Counter()
        for lease, used in self.charged.items():
            paid[self.seats[lease]] += used
        for (seat, budget), found in zip(budgets.items(), left, strict=True):
            meters = parse_budget(found, "own", 0)
            if budget is not None and (meters[0].reserved, meters[0].used) != (reserved[seat], paid[seat]):
                wrong.append(
                    f"{seat}: {meters[0]}, and should reserve {reserved[seat]} and have used {paid[seat]}"
                )
        found = {job.decode(): int(hold.split()[2]) for job, hold in holds.items()}
        if found != self.reservations:
            wrong.append(f"jobs reserve {found}, and should {self.reservations}")
        money = {name.decode()[8:]: int(n) for name, n in spent.items() if name.startswith(b"money ")}
        if money != {name: n for name, n in self.spent.items() if name in money or n}:
            wrong.append(f"spent {money}, recorded {dict(self.spent)}")
        due = {job.decode() for job in answers}
        if due != self.unanswered:
            wrong.append(f"answers due {due}, and should be {self.unanswered}")
        return wrong

    def find_record_differences(self, job: str) -> list[str]:
        """Return the differences in an ended job's rows and stream."""
        client, keys = self.grid.client, self.grid.keys
        rows = [row.decode() for row in client.lrange(keys("rows", job), 0, -1)]
        stream = [
            fields[b"piece"].decode()
            for _, fields in client.xrange(keys("stream", job))
            if b"piece" in fields
        ]
        wrong = [f"{job}: rows {rows}, and should be {self.rows[job]}"] if rows != self.rows[job] else []
        if stream != self.pieces[job]:
            wrong.append(f"{job}: pieces {stream}, and should be {self.pieces[job]}")
        return wrong

    # -- the calls

    def _claimed(self, seat: str, reply: Any) -> None:
        claim = read_claim(reply)
        if isinstance(claim, Claim):
            self.seats.setdefault(claim.lease, seat)
            first = self.streamed.get(claim.lease.rsplit(":", 2)[0], claim.lease)
            assert first == claim.lease, f"{claim.lease} runs again what {first} has begun to answer"

    def _completed(self, args: tuple[Any, ...], reply: Any) -> None:
        lease, used, rows = args[0], _micro(args[2]), args[3]
        result = reply[0]
        if result != -2:
            self._charge(lease, used)
        if result == 1:
            job = lease.split(":")[0]
            self.settled.add(lease)
            self.recorded[lease.rsplit(":", 2)[0]] += 1
            self.rows[job].append(rows)
            if job in self.agents:
                for name in (self.agents[job], TEAM):
                    self.spent[name] += used
                if job in self.reservations:
                    self.reservations[job] -= min(used, self.reservations[job])
                    if not self.reservations[job]:
                        del self.reservations[job]
        self._claimed(str(args[4]), reply[2])

    def _charge(self, lease: str, used: int) -> None:
        """Charge an attempt the highest usage that it reported, until it is recorded."""
        if lease not in self.settled and lease in self.seats:
            self.charged[lease] = max(used, self.charged.get(lease, 0))

    def _emitted(self, args: tuple[Any, ...]) -> None:
        lease, _path, _before, _dropped, _count, *emitted = args
        self.streamed.setdefault(lease.rsplit(":", 2)[0], lease)
        pieces = self.pieces[lease.split(":")[0]]
        pieces += [piece for piece in emitted if piece not in pieces]


def _micro(usage: Any) -> int:
    """Return the micro-dollars of the usage in a call."""
    return int(str(usage).partition(",")[0])
