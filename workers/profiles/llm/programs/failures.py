"""Translate the error messages of a vendor's program to the grid's errors.

| failure | error | consequence |
|---|---|---|
| logged out, expired, no credit, broken install | SeatDegraded | the seat cools down, longer each time |
| rate limited until T | SeatDegraded | the seat cools down until T |
| rate limited, no time stated | SeatRateLimited | another seat |
| model unknown | ModelUnavailable | the model goes into cooldown at this seat; another seat |
| overloaded, anything else | SeatUnavailable | another seat |
| the request is rejected | StageError | the stage fails with the program's own message |

An error never quotes the prompt: lines of the output that contain a part of it are removed.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from datetime import UTC, datetime

from gridq.errors import (
    GridError,
    ModelUnavailable,
    SeatDegraded,
    SeatRateLimited,
    SeatUnavailable,
    StageError,
)
from gridq.protocol.masking import MAX_CHARACTERS, mask_account
from gridq.protocol.models import Json
from workers.profiles.llm.programs.reset_times import parse_reset_time
from workers.profiles.llm.programs.vendor import Failure, VendorProgram

MAX_REASON_CHARACTERS = 500
SHORT_LIMIT_SECONDS = 20.0
"""For a shorter rate limit the stage goes to another seat, but the seat does not cool down."""

COOLDOWN_FAILURES = frozenset({Failure.LOGGED_OUT, Failure.EXPIRED, Failure.NO_CREDIT, Failure.BROKEN})
BROKEN_INSTALL = re.compile(
    r"cannot find module|command not found|no such file or directory|exec format error|permission denied|"
    r"requires node|unsupported engine|error while loading shared libraries|unknown (option|argument)|"
    r"unexpected argument",
    re.IGNORECASE,
)
"""Messages of the system, or of a version that does not know an option: the installation needs repair."""

MIN_QUOTE_CHARACTERS = 12
"""Minimum length of a line that counts as a quote of the prompt."""

MAX_COMPARISONS = 1_000_000
"""Pairs of lines to compare."""


def classify_failure(program: VendorProgram, message: str) -> Failure | None:
    """Return the failure that `message` reports, None if it is not known."""
    for failure, pattern in program.failure_patterns:
        if pattern.search(message):
            return failure
    return Failure.BROKEN if BROKEN_INSTALL.search(message) else None


def remove_prompt(output: str, prompt: str) -> str:
    """Return `output` without the lines that quote the prompt, "" if the comparison would take too long."""
    quotes = {line for line in map(str.strip, prompt.splitlines()) if len(line) >= MIN_QUOTE_CHARACTERS}
    lines = [line for line in map(str.strip, output.splitlines()) if line]
    if len(quotes) * len(lines) > MAX_COMPARISONS:
        return ""
    return "\n".join(
        line
        for line in lines
        if len(line) < MIN_QUOTE_CHARACTERS or not (line in prompt or any(each in line for each in quotes))
    )


def redact(output: str, secrets: Iterable[str] = ()) -> str:
    """Return the end of a program's output in one line, with keys and accounts masked, for an error."""
    return mask_account(" ".join(output.split())[-MAX_CHARACTERS:], secrets)[-MAX_REASON_CHARACTERS:]


def make_error(
    program: VendorProgram, message: str, stderr: str, reason: str, details: dict[str, Json]
) -> GridError:
    """Return the error for a call without an answer. Its detail `state` is that of the seat.

    `message` is the reason that the program gave. `stderr` counts if that is not a known failure. `reason` is
    the text that the error may show. If it states no time, the circuit breaker decides on the cooldown.
    """
    failure = classify_failure(program, message) or classify_failure(program, stderr)
    details = {**details, "reason": reason or "it gave no reason"}
    title = program.title
    if failure is not None:
        details["state"] = str(failure)
    if failure is Failure.REFUSED:
        return StageError(f"{title} rejected the request: {details['reason']}", {**details, "status": 400})
    if failure in COOLDOWN_FAILURES:
        return SeatDegraded(f"{title}: {failure}", {**details, "fix": _suggest_fix(program, failure)})
    if failure is Failure.LIMITED:
        reset = parse_reset_time(message, datetime.now(UTC))
        if reset is None:
            return SeatRateLimited(f"{title} has reached its rate limit", details)
        details["retry_after"] = delay = max(0.0, reset - time.time())
        if delay < SHORT_LIMIT_SECONDS:
            return SeatRateLimited(f"{title} has reached its rate limit", details)
        return SeatDegraded(f"{title}: rate limited until {_format_time(reset)}", details)
    if failure is Failure.NO_MODEL:
        fix = "correct the names in the seat's models; they are passed to the program's --model"
        return ModelUnavailable(f"{title} does not know the model", {**details, "fix": fix})
    if failure is Failure.OVERLOADED:
        return SeatUnavailable(f"The service of {title} is overloaded", details)
    return SeatUnavailable(f"{title} returned no answer", details)


def _suggest_fix(program: VendorProgram, failure: Failure) -> str:
    if failure is Failure.NO_CREDIT:
        return "top up the account, or wait for its next period"
    if failure is Failure.BROKEN:
        return f"reinstall or upgrade {program.title}; see gridq probe"
    return f"log in on the seat's machine: {program.log_in}"


def _format_time(at: float) -> str:
    """Format a time in UTC, with the day if it is not today."""
    moment = datetime.fromtimestamp(at, UTC)
    today = moment.date() == datetime.now(UTC).date()
    return moment.strftime("%H:%M UTC" if today else "%-d %B, %H:%M UTC")
