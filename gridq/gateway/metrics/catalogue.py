"""Every metric by name: what it is, and what it covers. docs/http.md shows the same table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

GRID = "Of the whole grid, as this gateway has counted it since its start; of several gateways take one."
OWN = "Of this gateway alone, since its start."
NOW = "Of the whole grid, now."
HERE = "Of this gateway alone, now."


class Measure(NamedTuple):
    """One metric: what it says, what it covers, its labels. A counter's samples end in `_total`."""

    kind: Literal["counter", "gauge", "histogram"]
    text: str
    covers: str
    labels: tuple[str, ...] = ()

    @property
    def help(self) -> str:
        """Its HELP line."""
        return f"{self.text} {self.covers}"


MEASURES: Mapping[str, Measure] = {
    "gridq_jobs": Measure(
        "gauge",
        "Jobs that are queued or running.",
        NOW,
        ("state",),
    ),
    "gridq_jobs_submitted": Measure(
        "counter",
        "Jobs that were taken.",
        GRID,
    ),
    "gridq_jobs_ended": Measure(
        "counter",
        "Jobs that ended, by their final state.",
        GRID,
        ("state",),
    ),
    "gridq_queue_depth": Measure(
        "gauge",
        "Stages that stand ready.",
        NOW,
        (
            "queue",
            "priority",
        ),
    ),
    "gridq_queue_oldest_seconds": Measure(
        "gauge",
        "For how long the oldest of them waits.",
        NOW,
        (
            "queue",
            "priority",
        ),
    ),
    "gridq_queue_running": Measure(
        "gauge",
        "Stages claimed from it that run.",
        NOW,
        ("queue",),
    ),
    "gridq_queue_concurrency": Measure(
        "gauge",
        "Slots that take from it.",
        NOW,
        ("queue",),
    ),
    "gridq_seat_up": Measure(
        "gauge",
        "1: the seat is live and takes work; 0: it is live and does not.",
        NOW,
        (
            "seat",
            "kind",
            "state",
        ),
    ),
    "gridq_seat_concurrency": Measure(
        "gauge",
        "Stages it can run at once.",
        NOW,
        ("seat",),
    ),
    "gridq_seat_busy": Measure(
        "gauge",
        "Slots that hold a stage.",
        NOW,
        ("seat",),
    ),
    "gridq_seat_reliability": Measure(
        "gauge",
        "The part of its attempts that comes to something, the latest counting most.",
        NOW,
        ("seat",),
    ),
    "gridq_seat_budget_dollars": Measure(
        "gauge",
        "Of the budgets of money that bind it, its own or shared, that with least left; none: no budget.",
        NOW,
        ("seat",),
    ),
    "gridq_seat_budget_left_dollars": Measure(
        "gauge",
        "What is left of that.",
        NOW,
        ("seat",),
    ),
    "gridq_account_limit": Measure(
        "gauge",
        "Each limit that gridq quota shows, in dollars or as it is counted; none where there is none.",
        NOW,
        (
            "kind",
            "name",
            "what",
        ),
    ),
    "gridq_account_used": Measure(
        "gauge",
        "What is used of it; of agents the 500 nearest to a limit, the rest are (others).",
        NOW,
        (
            "kind",
            "name",
            "what",
        ),
    ),
    "gridq_account_held": Measure(
        "gauge",
        "What is promised to what runs.",
        NOW,
        (
            "kind",
            "name",
            "what",
        ),
    ),
    "gridq_account_left": Measure(
        "gauge",
        "The limit without both; below nothing where actual use went over.",
        NOW,
        (
            "kind",
            "name",
            "what",
        ),
    ),
    "gridq_account_turn_timestamp_seconds": Measure(
        "gauge",
        "When its window turns, in seconds since 1970; none where it has not begun.",
        NOW,
        (
            "kind",
            "name",
            "what",
        ),
    ),
    "gridq_stages": Measure(
        "counter",
        "Stages that were recorded, of jobs that ended.",
        GRID,
        (
            "queue",
            "state",
        ),
    ),
    "gridq_stage_wait_seconds": Measure(
        "histogram",
        "From ready to claimed, of the stages of jobs that ended.",
        GRID,
        ("queue",),
    ),
    "gridq_stage_run_seconds": Measure(
        "histogram",
        "From claimed to recorded, of the same stages.",
        GRID,
        ("queue",),
    ),
    "gridq_stage_retries": Measure(
        "counter",
        "Attempts before the recorded one that failed, were lost or died.",
        GRID,
        ("queue",),
    ),
    "gridq_stage_tokens": Measure(
        "counter",
        "Tokens that recorded stages used.",
        GRID,
        (
            "queue",
            "direction",
        ),
    ),
    "gridq_losses": Measure(
        "counter",
        "Attempts that were lost with their worker.",
        "Of the whole grid, kept by its server.",
    ),
    "gridq_agent_spent_dollars": Measure(
        "counter",
        "What the recorded stages of its jobs cost; most agents but the first 500 are (others).",
        GRID,
        ("agent",),
    ),
    "gridq_seat_spent_dollars": Measure(
        "counter",
        "What the recorded stages that it ran cost.",
        GRID,
        ("seat",),
    ),
    "gridq_http_requests": Measure(
        "counter",
        "Requests that were answered; 499: the client went away first.",
        OWN,
        (
            "method",
            "route",
            "status",
        ),
    ),
    "gridq_http_request_seconds": Measure(
        "histogram",
        "How long they took; of a stream to its head.",
        OWN,
        ("route",),
    ),
    "gridq_http_open_requests": Measure(
        "gauge",
        "Requests that are open.",
        HERE,
    ),
    "gridq_http_open_streams": Measure(
        "gauge",
        "Streams that are open.",
        HERE,
    ),
    "gridq_relay_followers": Measure(
        "gauge",
        "Readers that wait for the streams of jobs.",
        HERE,
    ),
    "gridq_metrics_behind": Measure(
        "gauge",
        "1: more jobs ended than were read for this answer; the next one has more of them.",
        HERE,
    ),
    "noether_grid_workers_total": Measure(
        "gauge",
        "noether-grid's name: live seats.",
        NOW,
    ),
    "noether_grid_workers_healthy": Measure(
        "gauge",
        "noether-grid's name: live seats that take work.",
        NOW,
    ),
    "noether_grid_jobs_submitted": Measure(
        "counter",
        "noether-grid's name of gridq_jobs_submitted.",
        GRID,
    ),
    "noether_grid_jobs_succeeded": Measure(
        "counter",
        "noether-grid's name of gridq_jobs_ended of the state done.",
        GRID,
    ),
    "noether_grid_jobs_failed": Measure(
        "counter",
        "noether-grid's name of gridq_jobs_ended of the states failed and cancelled.",
        GRID,
    ),
    "noether_grid_jobs_abandoned": Measure(
        "counter",
        "noether-grid's name of gridq_jobs_ended of the state expired.",
        GRID,
    ),
    "noether_grid_cents_spent": Measure(
        "counter",
        "noether-grid's name: cents that recorded stages cost.",
        GRID,
    ),
}
