"""Every metric by name: what it is, and what it covers. docs/http.md shows the same table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

GRID_SINCE_START = "Of the whole grid, as this gateway has counted it since its start; of several gateways take one."
GATEWAY_SINCE_START = "Of this gateway alone, since its start."
GRID_NOW = "Of the whole grid, now."
GATEWAY_NOW = "Of this gateway alone, now."


class Metric(NamedTuple):
    """One metric: what it says, what it covers, its labels. A counter's samples end in `_total`."""

    kind: Literal["counter", "gauge", "histogram"]
    text: str
    covers: str
    labels: tuple[str, ...] = ()

    @property
    def help(self) -> str:
        """Its HELP line."""
        return f"{self.text} {self.covers}"


METRICS: Mapping[str, Metric] = {
    "gridq_jobs": Metric(
        "gauge",
        "Jobs that are queued or running.",
        GRID_NOW,
        ("state",),
    ),
    "gridq_jobs_submitted": Metric(
        "counter",
        "Jobs that were taken.",
        GRID_SINCE_START,
    ),
    "gridq_jobs_ended": Metric(
        "counter",
        "Jobs that ended, by their final state.",
        GRID_SINCE_START,
        ("state",),
    ),
    "gridq_queue_depth": Metric(
        "gauge",
        "Stages that stand ready.",
        GRID_NOW,
        (
            "queue",
            "priority",
        ),
    ),
    "gridq_queue_oldest_seconds": Metric(
        "gauge",
        "For how long the oldest of them waits.",
        GRID_NOW,
        (
            "queue",
            "priority",
        ),
    ),
    "gridq_queue_running": Metric(
        "gauge",
        "Stages claimed from it that run.",
        GRID_NOW,
        ("queue",),
    ),
    "gridq_queue_concurrency": Metric(
        "gauge",
        "Slots that take from it.",
        GRID_NOW,
        ("queue",),
    ),
    "gridq_seat_up": Metric(
        "gauge",
        "1: the seat is live and takes work; 0: it is live and does not.",
        GRID_NOW,
        (
            "seat",
            "kind",
            "state",
        ),
    ),
    "gridq_seat_concurrency": Metric(
        "gauge",
        "Stages it can run at once.",
        GRID_NOW,
        ("seat",),
    ),
    "gridq_seat_busy": Metric(
        "gauge",
        "Slots that hold a stage.",
        GRID_NOW,
        ("seat",),
    ),
    "gridq_seat_reliability": Metric(
        "gauge",
        "The part of its attempts that comes to something, the latest counting most.",
        GRID_NOW,
        ("seat",),
    ),
    "gridq_seat_budget_dollars": Metric(
        "gauge",
        "Of the budgets of money that bind it, its own or shared, that with least left; none: no budget.",
        GRID_NOW,
        ("seat",),
    ),
    "gridq_seat_budget_left_dollars": Metric(
        "gauge",
        "What is left of that.",
        GRID_NOW,
        ("seat",),
    ),
    "gridq_account_limit": Metric(
        "gauge",
        "Each limit that gridq quota shows, in dollars or as it is counted; none where there is none.",
        GRID_NOW,
        (
            "kind",
            "name",
            "what",
        ),
    ),
    "gridq_account_used": Metric(
        "gauge",
        "What is used of it; of agents the 500 nearest to a limit, the rest are (others).",
        GRID_NOW,
        (
            "kind",
            "name",
            "what",
        ),
    ),
    "gridq_account_held": Metric(
        "gauge",
        "What is promised to what runs.",
        GRID_NOW,
        (
            "kind",
            "name",
            "what",
        ),
    ),
    "gridq_account_left": Metric(
        "gauge",
        "The limit without both; below nothing where actual use went over.",
        GRID_NOW,
        (
            "kind",
            "name",
            "what",
        ),
    ),
    "gridq_account_turn_timestamp_seconds": Metric(
        "gauge",
        "When its window turns, in seconds since 1970; none where it has not begun.",
        GRID_NOW,
        (
            "kind",
            "name",
            "what",
        ),
    ),
    "gridq_stages": Metric(
        "counter",
        "Stages that were recorded, of jobs that ended.",
        GRID_SINCE_START,
        (
            "queue",
            "state",
        ),
    ),
    "gridq_stage_wait_seconds": Metric(
        "histogram",
        "From ready to claimed, of the stages of jobs that ended.",
        GRID_SINCE_START,
        ("queue",),
    ),
    "gridq_stage_run_seconds": Metric(
        "histogram",
        "From claimed to recorded, of the same stages.",
        GRID_SINCE_START,
        ("queue",),
    ),
    "gridq_stage_retries": Metric(
        "counter",
        "Attempts before the recorded one that failed, were lost or died.",
        GRID_SINCE_START,
        ("queue",),
    ),
    "gridq_stage_tokens": Metric(
        "counter",
        "Tokens that recorded stages used.",
        GRID_SINCE_START,
        (
            "queue",
            "direction",
        ),
    ),
    "gridq_losses": Metric(
        "counter",
        "Attempts that were lost with their worker.",
        "Of the whole grid, kept by its server.",
    ),
    "gridq_agent_spent_dollars": Metric(
        "counter",
        "What the recorded stages of its jobs cost; most agents but the first 500 are (others).",
        GRID_SINCE_START,
        ("agent",),
    ),
    "gridq_seat_spent_dollars": Metric(
        "counter",
        "What the recorded stages that it ran cost.",
        GRID_SINCE_START,
        ("seat",),
    ),
    "gridq_http_requests": Metric(
        "counter",
        "Requests that were answered; 499: the client went away first.",
        GATEWAY_SINCE_START,
        (
            "method",
            "route",
            "status",
        ),
    ),
    "gridq_http_request_seconds": Metric(
        "histogram",
        "How long they took; of a stream to its head.",
        GATEWAY_SINCE_START,
        ("route",),
    ),
    "gridq_http_open_requests": Metric(
        "gauge",
        "Requests that are open.",
        GATEWAY_NOW,
    ),
    "gridq_http_open_streams": Metric(
        "gauge",
        "Streams that are open.",
        GATEWAY_NOW,
    ),
    "gridq_relay_followers": Metric(
        "gauge",
        "Readers that wait for the streams of jobs.",
        GATEWAY_NOW,
    ),
    "gridq_metrics_behind": Metric(
        "gauge",
        "1: more jobs ended than were read for this answer; the next one has more of them.",
        GATEWAY_NOW,
    ),
    "noether_grid_workers_total": Metric(
        "gauge",
        "noether-grid's name: live seats.",
        GRID_NOW,
    ),
    "noether_grid_workers_healthy": Metric(
        "gauge",
        "noether-grid's name: live seats that take work.",
        GRID_NOW,
    ),
    "noether_grid_jobs_submitted": Metric(
        "counter",
        "noether-grid's name of gridq_jobs_submitted.",
        GRID_SINCE_START,
    ),
    "noether_grid_jobs_succeeded": Metric(
        "counter",
        "noether-grid's name of gridq_jobs_ended of the state done.",
        GRID_SINCE_START,
    ),
    "noether_grid_jobs_failed": Metric(
        "counter",
        "noether-grid's name of gridq_jobs_ended of the states failed and cancelled.",
        GRID_SINCE_START,
    ),
    "noether_grid_jobs_abandoned": Metric(
        "counter",
        "noether-grid's name of gridq_jobs_ended of the state expired.",
        GRID_SINCE_START,
    ),
    "noether_grid_cents_spent": Metric(
        "counter",
        "noether-grid's name: cents that recorded stages cost.",
        GRID_SINCE_START,
    ),
}
