"""Count the grid's ended jobs from the records that they leave.

The scripts keep no counters for monitoring, because each would cost every stage some time. The state and
the rows of an ended job are kept for GRIDQ_RESULT_TTL and are read once, at the next scrape. So each
gateway counts the whole grid: scrape one of them, and do not add them up.
"""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from threading import Lock
from typing import Any

from redis import Redis

from gridq.gateway.metrics.histogram import Histogram
from gridq.store.keys import Keys

PAGE_JOBS = 200
"""Jobs that are read in one round trip."""

MAX_JOBS_PER_UPDATE = 4000
"""Maximum number of jobs that one update reads. The next update reads the rest."""

MAX_AGENTS = 500
"""Maximum number of agents that are counted by name. Later ones are counted as OTHER_AGENTS."""

OTHER_AGENTS = "(others)"


class JobMetrics:
    """Metrics of ended jobs, counted since the gateway's start. Safe to share among threads."""

    def __init__(self, ttl_ms: int) -> None:
        self.submitted = 0
        self.ended: Counter[str] = Counter()
        self.stages: Counter[tuple[str, str]] = Counter()
        self.retries: Counter[str] = Counter()
        self.waits: defaultdict[str, Histogram] = defaultdict(Histogram)
        self.runs: defaultdict[str, Histogram] = defaultdict(Histogram)
        self.tokens: Counter[tuple[str, str]] = Counter()
        self.prompt_tokens: Counter[tuple[str, str]] = Counter()
        self.agents: Counter[str] = Counter()
        self.seats: Counter[str] = Counter()
        self.micro_dollars = 0
        self.lagging = False
        """True if the last update did not read all ended jobs."""
        self._created_at = time.monotonic()
        self._ttl_ms = ttl_ms
        self._read_until = -1.0
        self._seen: set[bytes] = set()
        self._submitted_until = -1
        self._lock = Lock()

    def update(self, client: Redis, keys: Keys) -> None:
        """Count the jobs that were submitted and those that ended since the last update."""
        with self._lock:
            clock: Any = client.time()
            now = int(clock[0]) * 1000 + int(clock[1]) // 1000
            if self._read_until < 0:
                self._submitted_until = now - int((time.monotonic() - self._created_at) * 1000) - 1
                self._read_until = self._submitted_until + self._ttl_ms
            # The current millisecond is left for the next update, because more jobs may be submitted in it.
            submitted: Any = client.zcount(keys("jobs"), f"({self._submitted_until}", now - 1)
            self.submitted += submitted
            self._submitted_until = max(self._submitted_until, now - 1)
            for _ in range(MAX_JOBS_PER_UPDATE // PAGE_JOBS):
                more = self._read_page(client, keys)
                if not more:
                    self.lagging = False
                    return
            self.lagging = True

    def _read_page(self, client: Redis, keys: Keys) -> bool:
        """Count one page of ended jobs. Returns True if there may be more.

        Jobs are sorted by when their results expire, so a job whose submitter has a shorter
        GRIDQ_RESULT_TTL than the grid may be missed.
        """
        num = PAGE_JOBS + len(self._seen)
        found: Any = client.zrange(
            keys("ended_jobs"), self._read_until, "+inf", byscore=True, withscores=True, offset=0, num=num
        )
        fresh = [(job, at) for job, at in found if job not in self._seen]
        pipeline = client.pipeline(transaction=False)
        for job, _ in fresh:
            name = job.decode()
            pipeline.hmget(keys("summary", name), ["state", "agent"])
            pipeline.lrange(keys("rows", name), 0, -1)
        replies = pipeline.execute() if fresh else []
        for summary, rows in zip(replies[::2], replies[1::2], strict=True):
            self._count_job(summary, rows)
        if found:
            last = found[-1][1]
            # Jobs of the last millisecond, because more may still end in it.
            same = {job for job, at in found if at == last}
            self._seen = same | (self._seen if last == self._read_until else set())
            self._read_until = last
        return len(found) == num

    def _count_job(self, summary: list[bytes | None], rows: list[bytes]) -> None:
        state, agent = summary
        if state is None:
            return
        self.ended[state.decode()] += 1
        spent = 0
        for text in rows:
            for row in json.loads(text):
                spent += self._count_row(row)
        if spent:
            name = (agent or b"").decode()
            self.agents[name if name in self.agents or len(self.agents) < MAX_AGENTS else OTHER_AGENTS] += (
                spent
            )
            self.micro_dollars += spent

    def _count_row(self, row: dict[str, Any]) -> int:
        """Count one stage and return its cost in micro-dollars."""
        queue, spent = row["queue"], int(row.get("micro_dollars") or 0)
        self.stages[queue, row.get("state", "done")] += 1
        self.waits[queue].observe(row.get("wait_ms", 0.0) / 1000)
        self.runs[queue].observe(row.get("run_ms", 0.0) / 1000)
        attempts = row.get("failures", 0) + row.get("losses", 0) + row.get("deaths", 0)
        if attempts:
            self.retries[queue] += attempts
        for direction in ("in", "out"):
            if row.get(f"tokens_{direction}"):
                self.tokens[queue, direction] += row[f"tokens_{direction}"]
        if tokens_in := row.get("tokens_in"):
            cached = min(row.get("tokens_cached", 0), tokens_in)
            self.prompt_tokens[queue, "true"] += cached
            self.prompt_tokens[queue, "false"] += tokens_in - cached
        if spent:
            name, _, machine = row["worker"].partition("@")
            self.seats[f"{machine}.{name}" if machine else name] += spent
        return spent
