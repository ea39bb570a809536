"""Collect the metrics of the grid and of this gateway for Prometheus.

Gauges of the grid are read from the server at most once a second, however often they are scraped. Counters
are kept by each gateway itself. `gridq.gateway.metrics.catalogue` describes all metrics.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from gridq.gateway.grid.connection import GridConnection
from gridq.gateway.grid.snapshot import Cached
from gridq.gateway.metrics.catalogue import METRICS
from gridq.gateway.metrics.histogram import Histogram
from gridq.gateway.metrics.job_metrics import MAX_AGENTS, OTHER_AGENTS, JobMetrics
from gridq.gateway.metrics.profile_metrics import build_profile_families
from gridq.gateway.metrics.request_metrics import RequestMetrics
from gridq.limits import accounts
from gridq.limits.accounts import Account
from gridq.profiles.profile import load_profiles
from gridq.seats import registry
from gridq.seats.registry import LiveSeat
from gridq.views import queues as queue_views
from gridq.views.queues import QueueView

if TYPE_CHECKING:
    from prometheus_client import Metric

CACHE_SECONDS = 1.0
"""How long a response is cached, so that scrapes cannot load the grid."""

OPENMETRICS = "application/openmetrics-text"

MICRO_PER_DOLLAR = 1_000_000


@dataclass(slots=True)
class GridReading:
    """The state of the grid at one scrape."""

    seats: list[LiveSeat] = field(default_factory=list)
    queues: list[QueueView] = field(default_factory=list)
    accounts: tuple[Account, ...] = ()
    queued: int = 0
    running: int = 0
    attempts_lost: int = 0


class MetricsCollector:
    """Collects and formats the metrics of one gateway."""

    def __init__(self, grid: GridConnection, request_metrics: RequestMetrics) -> None:
        self.grid = grid
        self.request_metrics = request_metrics
        self.job_metrics = JobMetrics(int(grid.config.result_ttl * 1000))
        profiles = load_profiles(grid.config.profiles).values()
        self._metric_helps = {
            name: text for profile in profiles for name, text in profile.metric_helps.items()
        }
        self._plain = Cached(partial(grid.call, self._text, ""), CACHE_SECONDS)
        self._openmetrics = Cached(
            partial(grid.call, self._text, f"{OPENMETRICS}; version=1.0.0"), CACHE_SECONDS
        )

    async def text(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics in the format that `accept` asks for, and the content type. They are cached
        for CACHE_SECONDS.
        """
        return await (self._openmetrics if OPENMETRICS in accept else self._plain).get()

    def _text(self, accept: str) -> tuple[bytes, str]:
        from prometheus_client import CollectorRegistry
        from prometheus_client.exposition import choose_encoder

        reading = self._read_grid()
        collector_registry = CollectorRegistry(auto_describe=False)
        collector_registry.register(_FamilyList(list(self._build_families(reading))))
        encode, content_type = choose_encoder(accept)
        return encode(collector_registry), content_type

    def _read_grid(self) -> GridReading:
        client, keys = self.grid.client.redis, self.grid.keys
        self.job_metrics.update(client, keys)
        pipeline = client.pipeline(transaction=True)
        pipeline.zcard(keys("inbox"))
        pipeline.zcard(keys("deadlines"))
        pipeline.hget(keys("attempts_lost"), "count")
        inbox, open_jobs, attempts_lost = pipeline.execute()
        return GridReading(
            registry.read_live_seats(client, keys),
            queue_views.read_queues(client, keys),
            accounts.read_accounts(client, keys, self.grid.config.timezone).accounts,
            inbox,
            max(open_jobs - inbox, 0),
            int(attempts_lost or 0),
        )

    def _build_families(self, reading: GridReading) -> Iterator[Metric]:
        job_metrics, request_metrics = self.job_metrics, self.request_metrics
        yield _build_family("gridq_jobs", {("queued",): reading.queued, ("running",): reading.running})
        yield _build_family("gridq_jobs_submitted", {(): job_metrics.submitted})
        ends = {
            state: job_metrics.ended.get(state, 0) for state in ("done", "failed", "cancelled", "expired")
        }
        yield _build_family("gridq_jobs_ended", {(state,): count for state, count in ends.items()})
        yield from _build_queue_families(reading.queues)
        yield from _build_seat_families([seat for seat in reading.seats if seat.kind != registry.ROUTER_KIND])
        yield from build_profile_families(reading.seats, self._metric_helps)
        yield from _build_account_families(reading.accounts)
        yield _build_family("gridq_stages", job_metrics.stages)
        yield _build_histogram("gridq_stage_wait_seconds", job_metrics.waits)
        yield _build_histogram("gridq_stage_run_seconds", job_metrics.runs)
        yield _build_family("gridq_stage_retries", {(queue,): n for queue, n in job_metrics.retries.items()})
        yield _build_family("gridq_stage_tokens", job_metrics.tokens)
        yield _build_family("gridq_prompt_tokens", job_metrics.prompt_tokens)
        yield _build_family("gridq_attempts_lost", {(): reading.attempts_lost})
        for name, spent in (("agent", job_metrics.agents), ("seat", job_metrics.seats)):
            dollars = {(who,): micro / MICRO_PER_DOLLAR for who, micro in spent.items()}
            yield _build_family(f"gridq_{name}_spent_dollars", dollars)
        requests = {
            (method, route, str(status)): n for (method, route, status), n in request_metrics.requests.items()
        }
        yield _build_family("gridq_http_requests", requests)
        yield _build_histogram("gridq_http_request_duration_seconds", request_metrics.seconds)
        yield _build_family("gridq_http_open_requests", {(): request_metrics.open})
        yield _build_family("gridq_http_open_streams", {(): request_metrics.streams})
        yield _build_family("gridq_job_followers", {(): len(self.grid.relay)})
        yield _build_family("gridq_metrics_lagging", {(): int(job_metrics.lagging)})
        workers = [seat for seat in reading.seats if seat.kind != registry.ROUTER_KIND]
        healthy = sum(seat.state == "ready" and not seat.stale for seat in workers)
        noether = {
            "workers_total": len(workers),
            "workers_healthy": healthy,
            "jobs_submitted": job_metrics.submitted,
            "jobs_succeeded": ends["done"],
            "jobs_failed": ends["failed"] + ends["cancelled"],
            "jobs_abandoned": ends["expired"],
            "cents_spent": job_metrics.micro_dollars / 10_000,
        }
        for name, value in noether.items():
            yield _build_family(f"noether_grid_{name}", {(): value})


class _FamilyList:
    """A collector of families that are computed already."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _build_family(name: str, samples: Mapping[Any, float]) -> Metric:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    metric = METRICS[name]
    family_class: Any = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family: Any = family_class(name, metric.help, labels=metric.labels)
    for values, value in sorted(samples.items()):
        family.add_metric(values, value)
    built: Metric = family
    return built


def _build_histogram(name: str, found: Mapping[str, Histogram]) -> Metric:
    from prometheus_client.core import HistogramMetricFamily

    metric = METRICS[name]
    family = HistogramMetricFamily(name, metric.help, labels=metric.labels)
    for label, histogram in sorted(found.items()):
        family.add_metric([label], histogram.cumulative_buckets(), histogram.sum)
    return family


def _build_queue_families(queues: list[QueueView]) -> Iterator[Metric]:
    depth, oldest = {}, {}
    for view in queues:
        for priority, count in view.pending.items():
            depth[view.queue, priority] = count
            oldest[view.queue, priority] = view.oldest.get(priority, 0.0) / 1000
    yield _build_family("gridq_queue_depth", depth)
    yield _build_family("gridq_queue_oldest_seconds", oldest)
    for name in ("running", "concurrency"):
        yield _build_family(f"gridq_queue_{name}", {(view.queue,): getattr(view, name) for view in queues})


def _build_seat_families(seats: list[LiveSeat]) -> Iterator[Metric]:
    up = {(seat.seat, seat.kind, seat.state): int(seat.state == "ready" and not seat.stale) for seat in seats}
    yield _build_family("gridq_seat_up", up)
    in_cooldown = {(seat.seat,): len(seat.models_in_cooldown) for seat in seats}
    yield _build_family("gridq_seat_models_in_cooldown", in_cooldown)
    used = {(seat.seat,): ratio for seat in seats if (ratio := _compute_used_ratio(seat)) is not None}
    yield _build_family("gridq_capacity_used_ratio", used)
    for name in ("concurrency", "busy", "reliability"):
        yield _build_family(f"gridq_seat_{name}", {(seat.seat,): getattr(seat, name) for seat in seats})
    for name in ("budget", "budget_left"):
        known = {(seat.seat,): getattr(seat, name) for seat in seats}
        dollars = {key: micro / MICRO_PER_DOLLAR for key, micro in known.items() if micro is not None}
        yield _build_family(f"gridq_seat_{name}_dollars", dollars)


def _compute_used_ratio(seat: LiveSeat) -> float | None:
    """Return the used share of the seat's fullest budget of any resource, None without a budget."""
    shares = [1 - meter.remaining_fraction for meter in seat.meters if meter.limit]
    return max(shares, default=None)


def _build_account_families(accounts: Iterable[Account]) -> Iterator[Metric]:
    """Return the metrics of the accounts that `gridq quota` shows: money in dollars, GPU time in seconds,
    all else as it is counted.
    """
    names = ("limit", "used", "reserved", "left", "reset_timestamp_seconds")
    found: dict[str, dict[tuple[str, ...], float]] = {name: {} for name in names}
    for account in group_agents(accounts):
        unit = account.units_per_amount
        until = None if account.resets_at is None else account.resets_at / 1000
        amounts = (account.limit, account.spent, account.reserved, account.remaining)
        values = (*(None if amount is None else amount / unit for amount in amounts), until)
        for name, value in zip(names, values, strict=True):
            if value is not None:
                found[name][account.kind, account.name, account.what] = value
    for name, samples in found.items():
        yield _build_family(f"gridq_account_{name}", samples)


def group_agents(accounts: Iterable[Account]) -> list[Account]:
    """Return all accounts. If there are more than MAX_AGENTS agents, the accounts of the others are summed
    up.

    On a public grid anybody can be a new agent, so the number of labels must be bounded. The agents nearest
    to a limit stay separate, then those with the highest use. The others become one account without a
    limit, of OTHER_AGENTS.
    """
    grouped, agents = [], defaultdict(list)
    for account in accounts:
        if account.kind == "agent":
            agents[account.name].append(account)
        else:
            grouped.append(account)
    shown = heapq.nlargest(MAX_AGENTS, agents, key=lambda name: max(map(_get_usage, agents[name])))
    others = defaultdict(list)
    for name in agents.keys() - set(shown):
        for account in agents[name]:
            others[account.what].append(account)
    for some in others.values():
        spent, reserved = sum(each.spent for each in some), sum(each.reserved for each in some)
        grouped.append(replace(some[0], name=OTHER_AGENTS, limit=None, spent=spent, reserved=reserved))
    return [*grouped, *(account for name in shown for account in agents[name])]


def _get_usage(account: Account) -> tuple[float, int]:
    """Return the share of the limit that is used or reserved, and the amount itself."""
    used = account.spent + account.reserved
    return (0.0 if account.limit is None else used / max(account.limit, 1)), used
