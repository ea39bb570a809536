"""The catalogue of metrics: the type, the help text, the scope and the labels of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

GRID_SINCE_START = "Whole grid, counted by this gateway since its start; scrape one gateway only."
GATEWAY_SINCE_START = "This gateway, since its start."
GRID_NOW = "Whole grid, now."
GATEWAY_NOW = "This gateway, now."


class Metric(NamedTuple):
    """A metric: its help text, what it covers, its labels. The samples of a counter end in `_total`."""

    kind: Literal["counter", "gauge", "histogram"]
    text: str
    covers: str
    labels: tuple[str, ...] = ()

    @property
    def help(self) -> str:
        return f"{self.text} {self.covers}"


METRICS: Mapping[str, Metric] = {
    "gridq_jobs": Metric("gauge", "Jobs that are queued or running.", GRID_NOW, ("state",)),
    "gridq_jobs_submitted": Metric("counter", "Jobs that the grid accepted.", GRID_SINCE_START),
    "gridq_jobs_ended": Metric("counter", "Jobs that ended, by final state.", GRID_SINCE_START, ("state",)),
    "gridq_queue_depth": Metric("gauge", "Ready stages in the queue.", GRID_NOW, ("queue", "priority")),
    "gridq_queue_oldest_seconds": Metric(
        "gauge", "How long the oldest ready stage of the queue has waited.", GRID_NOW, ("queue", "priority")
    ),
    "gridq_queue_running": Metric(
        "gauge", "Running stages that were taken from the queue.", GRID_NOW, ("queue",)
    ),
    "gridq_queue_concurrency": Metric(
        "gauge", "Slots of the live seats that serve the queue.", GRID_NOW, ("queue",)
    ),
    "gridq_seat_up": Metric(
        "gauge", "1 if the live seat takes work, 0 if it does not.", GRID_NOW, ("seat", "kind", "state")
    ),
    "gridq_seat_models_in_cooldown": Metric(
        "gauge", "Models of the seat in cooldown after a failure, while its others work.", GRID_NOW, ("seat",)
    ),
    "gridq_seat_concurrency": Metric("gauge", "Stages that the seat can run at once.", GRID_NOW, ("seat",)),
    "gridq_seat_busy": Metric("gauge", "Stages that the seat is running.", GRID_NOW, ("seat",)),
    "gridq_seat_reliability": Metric(
        "gauge",
        "Share of the seat's attempts that succeed, from 0 to 1; recent attempts weigh more.",
        GRID_NOW,
        ("seat",),
    ),
    "gridq_capacity_used_ratio": Metric(
        "gauge",
        "Used share of the seat's fullest budget, of whatever it is; absent without a budget.",
        GRID_NOW,
        ("seat",),
    ),
    "gridq_seat_budget_dollars": Metric(
        "gauge",
        "The seat's tightest money budget, its own or shared; absent without a budget.",
        GRID_NOW,
        ("seat",),
    ),
    "gridq_seat_budget_left_dollars": Metric(
        "gauge", "What is left of the seat's tightest money budget.", GRID_NOW, ("seat",)
    ),
    "gridq_account_limit": Metric(
        "gauge",
        "Limit of the account, in dollars, tokens, requests, jobs or GPU seconds; absent without a limit.",
        GRID_NOW,
        ("kind", "name", "what"),
    ),
    "gridq_account_used": Metric(
        "gauge",
        "Amount used in the current window. Agents beyond the 500 nearest to a limit are summed as (others).",
        GRID_NOW,
        ("kind", "name", "what"),
    ),
    "gridq_account_reserved": Metric(
        "gauge", "Amount reserved for running work.", GRID_NOW, ("kind", "name", "what")
    ),
    "gridq_account_left": Metric(
        "gauge",
        "Limit minus used and reserved; negative if actual use exceeded the limit.",
        GRID_NOW,
        ("kind", "name", "what"),
    ),
    "gridq_account_reset_timestamp_seconds": Metric(
        "gauge",
        "Unix time at which the window resets; absent if it has not begun.",
        GRID_NOW,
        ("kind", "name", "what"),
    ),
    "gridq_stages": Metric(
        "counter", "Recorded stages of ended jobs, by final state.", GRID_SINCE_START, ("queue", "state")
    ),
    "gridq_stage_wait_seconds": Metric(
        "histogram", "Time from ready to claimed, for stages of ended jobs.", GRID_SINCE_START, ("queue",)
    ),
    "gridq_stage_run_seconds": Metric(
        "histogram", "Time from claimed to recorded, for stages of ended jobs.", GRID_SINCE_START, ("queue",)
    ),
    "gridq_stage_retries": Metric(
        "counter",
        "Attempts before the recorded one that failed, were lost, or killed their process.",
        GRID_SINCE_START,
        ("queue",),
    ),
    "gridq_stage_tokens": Metric(
        "counter", "Tokens that recorded stages used.", GRID_SINCE_START, ("queue", "direction")
    ),
    "gridq_prompt_tokens": Metric(
        "counter",
        "Input tokens of recorded stages, by whether they were read from a prompt cache (true or false).",
        GRID_SINCE_START,
        ("queue", "cached"),
    ),
    "gridq_attempts_lost": Metric(
        "counter", "Attempts that were lost with their worker.", "Whole grid, counted by the Redis server."
    ),
    "gridq_agent_spent_dollars": Metric(
        "counter",
        "Cost of the recorded stages of the agent's jobs. Agents after the first 500 are summed as (others).",
        GRID_SINCE_START,
        ("agent",),
    ),
    "gridq_seat_spent_dollars": Metric(
        "counter", "Cost of the recorded stages that the seat ran.", GRID_SINCE_START, ("seat",)
    ),
    "gridq_http_requests": Metric(
        "counter",
        "HTTP requests, by status; 499 if the client disconnected first.",
        GATEWAY_SINCE_START,
        ("method", "route", "status"),
    ),
    "gridq_http_request_duration_seconds": Metric(
        "histogram",
        "Duration of HTTP requests; of a stream until its response head.",
        GATEWAY_SINCE_START,
        ("route",),
    ),
    "gridq_http_open_requests": Metric("gauge", "Open HTTP requests.", GATEWAY_NOW),
    "gridq_http_open_streams": Metric("gauge", "Open HTTP streams.", GATEWAY_NOW),
    "gridq_job_followers": Metric("gauge", "Requests that wait for a job or read its stream.", GATEWAY_NOW),
    "gridq_metrics_lagging": Metric(
        "gauge", "1 if more jobs ended than one scrape counts; later scrapes catch up.", GATEWAY_NOW
    ),
    "noether_grid_workers_total": Metric("gauge", "Live seats, under noether-grid's name.", GRID_NOW),
    "noether_grid_workers_healthy": Metric(
        "gauge", "Live seats that take work, under noether-grid's name.", GRID_NOW
    ),
    "noether_grid_jobs_submitted": Metric(
        "counter", "gridq_jobs_submitted, under noether-grid's name.", GRID_SINCE_START
    ),
    "noether_grid_jobs_succeeded": Metric(
        "counter", "gridq_jobs_ended with the state done, under noether-grid's name.", GRID_SINCE_START
    ),
    "noether_grid_jobs_failed": Metric(
        "counter",
        "gridq_jobs_ended with the states failed and cancelled, under noether-grid's name.",
        GRID_SINCE_START,
    ),
    "noether_grid_jobs_abandoned": Metric(
        "counter", "gridq_jobs_ended with the state expired, under noether-grid's name.", GRID_SINCE_START
    ),
    "noether_grid_cents_spent": Metric(
        "counter", "Cost of recorded stages in cents, under noether-grid's name.", GRID_SINCE_START
    ),
}
