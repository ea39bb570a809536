"""Read the grid's records of a run as plain data: results, history rows, unrecorded attempts, money.

How attempts are counted. Each claim of a step raises its attempt number, so a step has the attempts 1, 2, 3,
… An attempt ends in one of two ways. It is recorded: its rows are in the job's history. Or it is unrecorded:
it was lost with its worker, handed back, failed, fenced off, or withdrawn with its job. Then
`closed_lease:<lease>` keeps it, with its seat and its charge. So for each step

    recorded attempts + unrecorded attempts = 1, 2, … without a gap, none in both

and each run that the witness saw belongs to one of them. The runs beyond those recorded are the extra runs;
each belongs to an unrecorded attempt. An unrecorded attempt may have no run (its worker died before it
started). A run without an attempt, or two runs of one attempt, break the rule.

The ledger also holds the use of each attempt, one entry for each time that more of it became known.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from redis import Redis

from gridq.config.settings import Settings
from gridq.errors import GridError
from gridq.graph.plan import Step
from gridq.jobs.record import End
from gridq.limits import ledger
from gridq.limits.ledger import Entry
from gridq.limits.ledger_verification import Verification, verify
from gridq.profiles.profile import load_profiles
from gridq.protocol.meters import OWN, parse_budget
from gridq.protocol.models import HistoryRow, Json
from gridq.protocol.states import JobState
from gridq.store import values
from gridq.store.keys import Keys
from gridq.submission.planning import compile_text, load_local_catalogue
from gridq.views.jobs import parse_rows

BATCH = 200


@dataclass(slots=True)
class JobRecord:
    """The records of one job. `lost`: step → attempt → (seat, micro-dollars charged) of unrecorded attempts.
    `ends`: the number of final states. `entries`: step → attempt → its ledger entries.
    """

    state: JobState | None = None
    value: Json = None
    error: GridError | None = None
    ends: int = 0
    admitted: bool = False
    rows: list[HistoryRow] = field(default_factory=list)
    lost: dict[int, dict[int, tuple[str, int]]] = field(default_factory=lambda: defaultdict(dict))
    entries: dict[int, dict[int, list[Entry]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )

    def recorded(self, step: int, path: str) -> list[int]:
        """Return the recorded attempts of a step, by the rows of its first stage."""
        lost = self.lost.get(step, {})
        return [row.attempt for row in self.rows if row.path == path and row.attempt not in lost]


@dataclass(frozen=True, slots=True)
class GridRecords:
    """The records of the whole grid: those of jobs, what agents have spent, what seats were charged, and how
    the ledger compares with both.
    """

    records: dict[str, JobRecord]
    spent: dict[str, int]
    charged: dict[str, int]
    losses: int
    verified: Verification


def read_records(client: Redis, keys: Keys, jobs: Iterable[str]) -> GridRecords:
    """Read the records of the grid and of `jobs`."""
    names = list(jobs)
    records = {job: JobRecord() for job in names}
    for at in range(0, len(names), BATCH):
        some = names[at : at + BATCH]
        look = client.pipeline(transaction=False)
        for job in some:
            look.lrange(keys("result", job), 0, -1)
            look.lrange(keys("rows", job), 0, -1)
            look.hget(keys("summary", job), "steps")
        replies: list[Any] = look.execute()
        for number, job in enumerate(some):
            ends, rows, count = replies[number * 3 : number * 3 + 3]
            records[job].admitted = int(count or 0) > 0
            records[job].rows = parse_rows(rows)
            _end(client, keys, records[job], ends)
    _lost(client, keys, records)
    for entry in ledger.read_entries(client, keys):
        if entry.charged and entry.job in records and entry.step is not None and entry.attempt is not None:
            records[entry.job].entries[entry.step][entry.attempt].append(entry)
    charged = {}
    for raw in client.scan_iter(keys("seat", "*"), count=1000):
        seat = raw.decode()[len(keys("seat", "")) :]
        for meter in parse_budget(client.hget(raw, OWN), OWN, 0):
            if meter.name == "money/month":
                charged[seat] = meter.used + meter.reserved
    spent: dict[str, int] = defaultdict(int)
    for raw in client.scan_iter(keys("spent", "*"), count=1000):
        found: Any = client.hgetall(raw)
        for name, value in found.items():
            spent[name.decode()] += int(value)
    losses: Any = client.hget(keys("attempts_lost"), "count")
    return GridRecords(records, dict(spent), charged, int(losses or 0), verify(client, keys))


def _end(client: Redis, keys: Keys, record: JobRecord, ends: list[bytes]) -> None:
    record.ends = len(ends)
    if ends:
        end = End.parse(ends[0])
        record.state, record.error = end.state, end.to_error()
        if record.error is None:
            record.value = values.decode(values.read(client, keys, end.payload))


def _lost(client: Redis, keys: Keys, records: dict[str, JobRecord]) -> None:
    head = len(keys("closed_lease", ""))
    found: list[bytes] = list(client.scan_iter(keys("closed_lease", "*"), count=1000))
    for at in range(0, len(found), 1000):
        some = found[at : at + 1000]
        replies: Any = client.mget(some)
        for raw, value in zip(some, replies, strict=True):
            job, step, _, attempt, _ = raw.decode()[head:].split(":")
            if job in records and value is not None:
                seat, usage, *_ = value.decode().split(" ")
                charged = usage.partition(",")[0]
                used = int(charged) if charged.isdigit() else 0  # '-': it died before it reported
                records[job].lost[int(step)][int(attempt)] = (seat, used)


class PlanCompiler:
    """Compiles graphs into steps, as a router does."""

    def __init__(self, config: Settings) -> None:
        self.config = config
        self.profiles = load_profiles(config.profiles)
        self.catalogue = load_local_catalogue(config, self.profiles)

    def steps(self, graph: Json) -> tuple[Step, ...]:
        """Return the steps of one graph."""
        text = json.dumps(graph)
        return compile_text(text, self.catalogue, self.config, self.profiles)[2].steps
