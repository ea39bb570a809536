"""Read jobs, their stages and their history.

This takes a few round trips and writes nothing. Times are in seconds since 1970 by the server's clock.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import Any

from pydantic import TypeAdapter, ValidationError
from redis import Redis

from gridq.graph.plan import Step, load_step
from gridq.jobs.record import End, parse_chain
from gridq.protocol.meters import NO_ESTIMATE, UsageEstimate
from gridq.protocol.models import HistoryRow, Json
from gridq.protocol.states import JobState, StageState
from gridq.store.keys import Keys

MAX_STEPS = 1000
"""The steps of the largest plan that is read. Of a larger plan only the counts are read; of the history at
most this many of the latest records.
"""

ROWS_PER_PART = 500
"""The rows that are read or encoded in one go."""

_ROWS = TypeAdapter(list[HistoryRow])


@dataclass(slots=True)
class StageView:
    """One stage of a job and its state.

    `step`: the number of what is claimed as one; adjacent pure stages share it. None once the job and its
    plan are gone. `seat`: who runs or ran it, as `cpu@machine`; `queue`: where it waits or waited. `wait_ms`:
    from ready to claimed; None if not known.

    `attempts` counts the claims; of these `failures` failed by the seat's fault, `losses` were lost with
    their worker, and `deaths` killed the process that ran them, since the stage, or a Retry around it,
    started last. `until`: when the quarantine ends. `excluded`: seats that may not take it, for now after a
    failure, or for good (`gridq.seats.access.is_excluded`).

    While it waits, `cost` is what its claim will reserve in micro-dollars, and `expects` what it is estimated
    to use. `links`: of a stage with fall-backs all of its queues, the best first, while the job runs.
    """

    path: str
    stage: str
    queue: str
    state: StageState = StageState.WAITING
    seat: str = ""
    step: int | None = None
    attempts: int = 0
    failures: int = 0
    losses: int = 0
    deaths: int = 0
    until: float | None = None
    started: float | None = None
    wait_ms: float | None = None
    run_ms: float | None = None
    tokens_in: int = 0
    tokens_out: int = 0
    micro_dollars: int | None = 0
    gpu_seconds: float = 0.0
    excluded: tuple[str, ...] = ()
    cost: int = 0
    expects: UsageEstimate = NO_ESTIMATE
    links: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JobSummary:
    """One line of the list of jobs. `left` counts the `steps` that have not ended."""

    job: str
    state: JobState
    name: str = ""
    agent: str = ""
    priority: str = "interactive"
    submitted: float = 0.0
    ended: float | None = None
    steps: int = 0
    left: int = 0

    def to_json(self) -> dict[str, Json]:
        return asdict(self)


@dataclass(slots=True)
class JobView:
    """A job at one instant; `state` None: there is no such job.

    `done` counts the steps that have ended, those of the Branch arm that is not taken too; `of` counts all
    steps. `stages` are in the order of the graph while the job runs, then in the order of their records.
    `error`: the record of the error that ended it. `now`: when this was read.
    """

    job: str
    state: JobState | None
    name: str = ""
    agent: str = ""
    priority: str = "interactive"
    submitted: float = 0.0
    deadline: float | None = None
    ended: float | None = None
    now: float = 0.0
    done: int = 0
    of: int = 0
    stages: list[StageView] = field(default_factory=list)
    rows: list[HistoryRow] = field(default_factory=list)
    error: dict[str, Json] | None = None

    def find_stages(self, state: StageState) -> list[StageView]:
        return [stage for stage in self.stages if stage.state is state]

    def hide_tracebacks(self) -> None:
        """Remove what only an operator may see: the code of a stage's author, with what it was given."""
        self.rows = [row.model_copy(update={"traceback": ""}) if row.traceback else row for row in self.rows]

    def to_json(self) -> dict[str, Json]:
        """Return the fields as a JSON object, with `rows`, one for each recorded attempt of a stage."""
        record = {name: getattr(self, name) for name in self.__slots__}
        record["stages"] = [asdict(stage) for stage in self.stages]
        record["rows"] = [row.model_dump() for row in self.rows]
        return record


def group_by_step(stages: Iterable[StageView]) -> list[list[StageView]]:
    """Group stages that are claimed as one."""
    return [list(group) for _, group in groupby(stages, key=lambda s: s.path if s.step is None else s.step)]


class JobReader:
    """A reader of one job, which reads its plan only once."""

    def __init__(self, client: Redis, keys: Keys, job: str) -> None:
        self._client = client
        self._keys = keys
        self.job = job
        self._steps: list[Step] = []
        self._count = 0

    def read(self, *, rows: bool = True) -> JobView:
        """Read the job; without `rows` no history: no times, no tokens, no stages of an ended job."""
        client, keys, job = self._client, self._keys, self.job
        # In one transaction: a job may change its state between two reads.
        pipe = client.pipeline(transaction=True)
        pipe.hmget(keys("job", job), HEADER_FIELDS)
        pipe.hmget(keys("submitted", job), ["name", "agent", "submitted_at", "deadline", "options"])
        pipe.hmget(keys("summary", job), [*HEADER_FIELDS, "state", "ended_at"])
        pipe.lindex(keys("result", job), 0)
        pipe.time()
        if rows:
            pipe.lrange(keys("rows", job), -MAX_STEPS, -1)
        head, inbox, about, end, clock, *history = pipe.execute()
        view = JobView(job, None, now=clock[0] + clock[1] / 1e6)
        if end is not None:
            view.rows = _parse_history(history)
            self._fill_ended(view, end, about)
        elif head[2] is not None:
            _fill_header(view, head)
            view.state = JobState.RUNNING
            if not self._fill_running(view, head, history):  # it has ended meanwhile
                return self.read(rows=rows)
        elif inbox[1] is not None:
            view.state = JobState.QUEUED
            view.name, view.priority = _parse_queued(inbox[0], inbox[4])
            view.agent = _decode(inbox[1])
            view.submitted, view.deadline = _to_seconds(inbox[2]) or 0.0, _to_seconds(inbox[3])
        return view

    def _fill_ended(self, view: JobView, end: bytes, about: list[bytes | None]) -> None:
        found = End.parse(end)
        view.state = found.state
        _fill_header(view, about)
        view.ended = _to_seconds(about[8])
        if found.state is not JobState.DONE:
            view.error = found.to_record()
        view.stages = list(_list_recorded(view.rows))
        if view.error is not None:
            _fill_counts(view.stages, view.error.get("details") or {})

    def _fill_running(self, view: JobView, head: list[bytes | None], history: list[list[bytes]]) -> bool:
        count = int(head[2] or 0)
        if not self._count:
            self._read_plan(count)
        if not self._steps:
            view.rows = _parse_history(history)
            return True
        names = [f"{name}:{index}" for name in _FIELDS for index in range(count)]
        # The rows again, at the instant of the fields, so that a stage that is done has its row.
        pipe = self._client.pipeline(transaction=True)
        pipe.hmget(self._keys("job", self.job), ["unfinished", *names])
        if history:
            pipe.lrange(self._keys("rows", self.job), -MAX_STEPS, -1)
        found, *history = pipe.execute()
        if found[0] is None:
            return False
        view.rows = _parse_history(history)
        columns = (found[1 + at : 1 + at + count] for at in range(0, len(_FIELDS) * count, count))
        fields = dict(zip(_FIELDS, columns, strict=True))
        workers = self._read_workers(fields["lease"])
        recorded = {stage.path: stage for stage in _list_recorded(view.rows)}
        for index, step in enumerate(self._steps):
            one = {name: column[index] for name, column in fields.items()}
            state, worker = _find_state(one, workers.get(index)), workers.get(index)
            for op in step.ops:
                stage = StageView(op.path, op.name, step.queue, state, step=index)
                _fill_recorded(stage, recorded.get(op.path))
                _fill_current(stage, one, worker, view.now)
                view.stages.append(stage)
        view.done = count - int(found[0])
        return True

    def _read_plan(self, count: int) -> None:
        if 0 < count <= MAX_STEPS:
            fields = [f"spec:{index}" for index in range(count)]
            texts: list[Any] = self._client.hmget(self._keys("job", self.job), fields)
            if None in texts:  # it has ended meanwhile
                return
            self._steps = [load_step(text) for text in texts]
        self._count = count

    def _read_workers(self, running: list[bytes | None]) -> dict[int, str]:
        """Return who runs each claimed step, as `cpu@machine`."""
        leases = {i: f"{self.job}:{i}:{rest.decode()}" for i, rest in enumerate(running) if rest is not None}
        if not leases:
            return {}
        found: list[Any] = self._client.hmget(self._keys("lease_info"), list(leases.values()))
        return {i: parse_worker(text) for i, text in zip(leases, found, strict=True) if text is not None}


HEADER_FIELDS = ["name", "agent", "steps", "unfinished", "submitted_at", "priority", "deadline"]
_FIELDS = (
    "done", "skipped", "lease", "pending", "ready_at", "started_at", "attempts", "excluded", "quarantine",
    "failures", "losses", "deaths", "chain", "tokens",
)  # fmt: skip
_COUNTS = ("attempts", "failures", "losses", "deaths")


def _fill_header(view: JobView, head: list[bytes | None]) -> None:
    name, agent, steps, left, at, prio, deadline = head[:7]
    view.of = int(steps or 0)
    view.done = view.of - int(left or 0)
    view.name, view.agent, view.priority = _decode(name), _decode(agent), _parse_priority(prio)
    view.submitted, view.deadline = _to_seconds(at) or 0.0, _to_seconds(deadline)


def _find_state(one: dict[str, bytes | None], worker: str | None) -> StageState:
    if one["skipped"] is not None:
        return StageState.SKIPPED
    if one["done"] is not None:
        return StageState.DONE
    if one["quarantine"] is not None:
        return StageState.QUARANTINED
    if worker is not None:
        return StageState.RUNNING
    return StageState.WAITING if one["pending"] is None else StageState.READY


def _fill_recorded(stage: StageView, recorded: StageView | None) -> None:
    if recorded is not None:
        for name in (
            "seat",
            "started",
            "wait_ms",
            "run_ms",
            "tokens_in",
            "tokens_out",
            "micro_dollars",
            "gpu_seconds",
        ):
            setattr(stage, name, getattr(recorded, name))


def _fill_current(stage: StageView, one: dict[str, bytes | None], worker: str | None, now: float) -> None:
    """Fill in what the fields of a running job say of a stage."""
    for name in _COUNTS:
        setattr(stage, name, int(one[name] or 0))
    if one["chain"] is not None:
        at, links = parse_chain(_decode(one["chain"]))
        stage.queue, stage.links = links[at], tuple(links)
    ready, started = _to_seconds(one["ready_at"]), _to_seconds(one["started_at"])
    if stage.state is StageState.RUNNING:
        stage.seat, stage.started = worker or "", started
        stage.run_ms = None if started is None else max(now - started, 0) * 1000
        if ready is not None and started is not None:
            stage.wait_ms = max(started - ready, 0) * 1000
    elif one["quarantine"] is not None:
        _fill_quarantine(stage, one["quarantine"])
    elif stage.state is StageState.READY:
        stage.started = stage.run_ms = None
        stage.wait_ms = None if ready is None else max(now - ready, 0) * 1000
        stage.excluded = tuple(filter(None, _decode(one["excluded"]).split(",")))
        stage.expects = UsageEstimate.parse(_decode(one["tokens"] or b"0 0"))
        stage.cost = int(re.sub(r"^\S+ \d+/(\d+)\|.*$", r"\1", _decode(one["pending"])))


def _fill_quarantine(stage: StageView, stored: bytes) -> None:
    """Fill in where a stage in quarantine ran last, and until when an operator may act."""
    until, _, error = stored.partition(b" ")
    details = json.loads(error)["details"]
    stage.seat, stage.until = str(details.get("worker") or stage.seat), _to_seconds(until)
    stage.started = stage.run_ms = stage.wait_ms = None


def _fill_counts(stages: list[StageView], details: dict[str, Json]) -> None:
    """Fill in the counts of the stage that failed, from the job's error, which includes its last attempt."""
    for stage in stages:
        if stage.path == details.get("path"):
            for name in _COUNTS:
                stored = details.get(name)  # a stage's own error may say anything
                setattr(stage, name, max(getattr(stage, name), stored if isinstance(stored, int) else 0))


def _list_recorded(rows: Iterable[HistoryRow]) -> Iterator[StageView]:
    """Yield a view of each recorded stage, by its last record."""
    last: dict[str, HistoryRow] = {}
    for row in rows:
        last.pop(row.path, None)  # keep the order of the last records
        last[row.path] = row
    for row in last.values():
        yield StageView(
            row.path,
            row.stage,
            row.queue,
            StageState(row.state),
            row.worker,
            attempts=row.attempt,
            failures=row.failures,
            losses=row.losses,
            deaths=row.deaths,
            started=row.started or None,
            wait_ms=row.wait_ms,
            run_ms=row.run_ms,
            tokens_in=row.tokens_in,
            tokens_out=row.tokens_out,
            micro_dollars=row.micro_dollars,
            gpu_seconds=row.gpu_seconds,
        )


def build_summary(
    job: str, at: float, head: list[Any], about: list[Any], inbox: list[Any]
) -> JobSummary | None:
    """Return a job's line of the list, from its three records; None if all are gone."""
    if about[7] is not None:
        state, ended = JobState(about[7].decode()), _to_seconds(about[8])
    elif head[2] is not None:
        about, state, ended = head, JobState.RUNNING, None
    elif inbox[1] is not None:
        name, priority = _parse_queued(inbox[0], inbox[2])
        return JobSummary(job, JobState.QUEUED, name, _decode(inbox[1]), priority, at / 1000)
    else:
        return None
    name, agent, count, left, _, prio, _ = about[:7]
    count, left = int(count or 0), int(left or 0)
    priority = _parse_priority(prio)
    return JobSummary(job, state, _decode(name), _decode(agent), priority, at / 1000, ended, count, left)


def parse_worker(worker: bytes) -> str:
    """Return `cpu@machine` from a lease's record, which begins with the seat's id `machine.cpu`."""
    machine, _, name = worker.split(b" ")[0].decode().partition(".")
    return f"{name}@{machine}"


def read_history(client: Redis, keys: Keys, job: str) -> list[HistoryRow]:
    """Read a row for each recorded attempt, in the order of the records. In parts: there may be thousands."""
    rows: list[HistoryRow] = []
    for at in itertools.count(0, ROWS_PER_PART):
        texts: Any = client.lrange(keys("rows", job), at, at + ROWS_PER_PART - 1)
        rows += parse_rows(texts)
        if len(texts) < ROWS_PER_PART:
            break
    return rows


def parse_rows(texts: list[bytes]) -> list[HistoryRow]:
    """Parse the rows of a job's history; each stored text has several."""
    return [row for text in texts for row in _parse_text(text)]


def _parse_text(text: bytes) -> list[HistoryRow]:
    try:
        return _ROWS.validate_json(text)
    except ValidationError:  # half of a surrogate pair in a traceback, which json reads
        return _ROWS.validate_python(json.loads(text))


def encode_rows(rows: Sequence[HistoryRow]) -> bytes:
    """Return rows as a JSON list. In parts, between which other threads run."""
    parts = (rows[at : at + ROWS_PER_PART] for at in range(0, len(rows), ROWS_PER_PART))
    return b"[" + b",".join(_encode_part(part)[1:-1] for part in parts) + b"]"


def _encode_part(rows: Sequence[HistoryRow]) -> bytes:
    try:
        return _ROWS.dump_json(list(rows))
    except ValueError:  # half of a surrogate pair, which only an escape can express
        return json.dumps([row.model_dump() for row in rows], separators=(",", ":")).encode()


def _parse_history(texts: list[list[bytes]]) -> list[HistoryRow]:
    return parse_rows(texts[0]) if texts else []


def _decode(value: bytes | None) -> str:
    return "" if value is None else value.decode("utf-8", "replace")


def _parse_queued(name: bytes | None, stored: bytes | None) -> tuple[str, str]:
    """Return name and priority of a job in the inbox, by its stored options."""
    options = json.loads(stored or b"{}")
    return _decode(name) or str(options.get("name") or ""), str(options.get("priority", "interactive"))


def _parse_priority(value: bytes | None) -> str:
    return "batch" if value == b"1" else "interactive"


def _to_seconds(value: bytes | None) -> float | None:
    """Return a stored time, which is in ms, in seconds."""
    return float(value) / 1000 if value else None
