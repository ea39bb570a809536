"""Tell a refused submitter what it waits for, and what would help.

Every error by which admission refuses a job, and every 429 and 503 of a gateway, has these `details`:

- `capability`: the queue; None if the limit is not one of a queue
- `bottleneck`: the limit that applies
- `position`: the job's place among the work that can be served; None if no seat would take it
- `starts_in`: `low`, `p50` and `high` in seconds; None also if nobody has measured how long stages take
- `retry_after`: seconds; None if waiting does not help
- `fix`: the smallest change that would help
"""

from __future__ import annotations

import math
from datetime import UTC, datetime

from gridq.errors import (
    AttemptsExhausted,
    BrokerError,
    DeadlineUnreachable,
    GridError,
    GridFull,
    JobBudgetExceeded,
    NoLiveSeat,
    QueueDropped,
    QueueFull,
    QuotaExceeded,
    SeatRateLimited,
)
from gridq.protocol import queue_names
from gridq.protocol.models import Json
from gridq.submission.start_forecast import StartForecast

DEFAULT_RETRY_SECONDS = 5.0
"""The time until the next try if nothing better is known."""


def explain_refusal(error: GridError, forecast: StartForecast | None = None) -> dict[str, Json]:
    """Return the error's details, completed as the module says. What the error says itself has precedence."""
    queue = error.details.get("queue") or (forecast.queue if forecast is not None else None)
    found: dict[str, Json] = {
        "capability": queue,
        "bottleneck": _find_bottleneck(error, forecast),
        "position": forecast.position if forecast is not None else None,
        "starts_in": None,
    }
    if forecast is not None and None not in (forecast.low, forecast.p50, forecast.high):
        found["starts_in"] = {
            name: round(float(seconds or 0.0), 3)
            for name, seconds in (("low", forecast.low), ("p50", forecast.p50), ("high", forecast.high))
        }
    retry_after = _find_retry_after(error, forecast)
    return (
        found | error.details | {"retry_after": retry_after, "fix": _find_fix(error, forecast, retry_after)}
    )


def _find_bottleneck(error: GridError, forecast: StartForecast | None) -> str:
    """Return the limit that applies, for errors that do not name it themselves."""
    details = error.details
    match error:
        case QueueFull() | QueueDropped():
            return f"max_pending of {details.get('queue')} ({details.get('limit')})"
        case QuotaExceeded():
            return error.path or "a quota"
        case GridFull():
            return "the server's memory"
        case BrokerError():
            return "the grid's server"
        case SeatRateLimited() | AttemptsExhausted():
            return f"the rate limit of {error.worker or 'its provider'}"
    if forecast is not None and forecast.bottleneck:
        return forecast.bottleneck
    return error.message[:1].lower() + error.message[1:]


def _find_retry_after(error: GridError, forecast: StartForecast | None) -> float | None:
    """Return the seconds after which another try may succeed; None if waiting does not help."""
    given = _read_seconds(error.details.get("retry_after"))
    if given is not None:
        return given
    rate = forecast.rate if forecast is not None else None
    low = None
    if forecast is not None:
        low = (forecast.resets_in or None) if forecast.low is None else forecast.low
    match error:
        case QuotaExceeded():
            return _find_quota_retry(error)
        case QueueFull():
            pending, limit, needed = (_read_number(error, name) for name in ("pending", "limit", "needed"))
            if needed > limit:
                return None
            if error.details.get("has_seat") is False:
                return max(round(low, 1), 1.0) if low else DEFAULT_RETRY_SECONDS
            if not rate:
                return DEFAULT_RETRY_SECONDS
            return max(round((pending + needed - limit) / rate, 1), 1.0)
        case DeadlineUnreachable() if low is not None:
            return max(round(low - _read_number(error, "seconds"), 1), 1.0)
        case NoLiveSeat() if low:  # until a seat that pauses is back
            return max(round(low, 1), 1.0)
    return DEFAULT_RETRY_SECONDS


def _find_quota_retry(error: QuotaExceeded) -> float | None:
    """Return the seconds until running jobs have released what they reserved, or the window resets."""
    used, needed, limit = (_read_number(error, name) for name in ("used", "needed", "limit"))
    if isinstance(error, JobBudgetExceeded) or needed > limit:
        return None
    if 0 < used + needed <= limit:
        return DEFAULT_RETRY_SECONDS
    until = _find_seconds_until(error.details.get("retry_at"))
    return DEFAULT_RETRY_SECONDS if until is None else until


def _find_seconds_until(instant: object) -> float | None:
    """Return the seconds until an instant in ISO 8601; None if it is not one."""
    try:
        at = datetime.fromisoformat(instant) if isinstance(instant, str) else None
    except ValueError:
        return None
    if at is None:
        return None
    left = ((at if at.tzinfo else at.replace(tzinfo=UTC)) - datetime.now(UTC)).total_seconds()
    return max(round(left, 3), 1.0)


def _read_seconds(value: object) -> float | None:
    """Return a detail that is a finite number; else None."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _read_number(error: GridError, name: str) -> float:
    return _read_seconds(error.details.get(name)) or 0.0


def _find_fix(error: GridError, forecast: StartForecast | None, retry_after: float | None) -> str | None:
    fixes = []
    if forecast is not None and forecast.faster_queue and not isinstance(error, QuotaExceeded | GridFull):
        fixes.append(f"use {_name_for_request(forecast.faster_queue)}, which would run it now")
    if isinstance(error, DeadlineUnreachable):
        fixes += _find_deadline_fixes(error, forecast)
    elif isinstance(error, QueueFull) and not fixes:
        if error.details.get("has_seat") is False:
            fixes.append("start a worker whose seat can take it")
        elif retry_after is not None:
            fixes.append(f"submit it again in {math.ceil(retry_after)} s")
        fixes.append(f"raise max_pending of {error.details.get('queue')} in the quotas file")
    elif error.fix:
        fixes.append(error.fix)
    if not fixes and retry_after is not None:
        fixes.append(f"try again in {max(math.ceil(retry_after), 1)} s")
    return ", or ".join(fixes) or None


def _name_for_request(queue: str) -> str:
    """Return what a request asks for to come into `queue`: requests name models without their kind."""
    is_model = queue_names.get_kind(queue) == queue_names.LLM
    return f"the model {queue_names.get_name(queue)!r}" if is_model else queue


def _find_deadline_fixes(error: DeadlineUnreachable, forecast: StartForecast | None) -> list[str]:
    if forecast is None:
        return []
    fixes = []
    if forecast.resets_in:
        fixes.append("raise a budget of its seats")
    sooner = forecast.as_interactive
    if sooner is not None and sooner.high is not None and sooner.high <= _read_number(error, "seconds"):
        fixes.append("submit it as interactive")
    if forecast.high is not None or forecast.resets_in:
        latest = max(forecast.high or 0.0, forecast.resets_in)
        fixes.append(f"raise the {error.details.get('option')} to {math.ceil(latest)} s")
    return fixes
