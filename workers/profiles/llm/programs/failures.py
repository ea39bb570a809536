"""What the words of a vendor's program mean to the grid.

| what is wrong | error | what follows |
|---|---|---|
| logged out, expired, no credit, broken install | SeatDegraded | the seat rests, each time longer |
| rate limited until T | SeatDegraded | the seat rests until T |
| rate limited, no time told | SeatRateLimited | another seat |
| overloaded, model unknown, anything else | SeatUnavailable | another seat |
| the request is refused | StageError | the stage fails with the program's own words |

An error never quotes the prompt: of what a program wrote, lines that stand in it are left out.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from datetime import UTC, datetime

from gridq.errors import GridError, SeatDegraded, SeatRateLimited, SeatUnavailable, StageError
from gridq.protocol.models import Json
from workers.profiles.llm.programs.reset_times import parse_reset_time
from workers.profiles.llm.programs.vendor import Failure, VendorProgram

MAX_REASON_CHARACTERS = 500
SHORT_LIMIT_SECONDS = 20.0
"""Seconds up to which a limit is a moment's: the stage goes elsewhere, the seat does not rest."""

COOLDOWN_FAILURES = frozenset({Failure.LOGGED_OUT, Failure.EXPIRED, Failure.NO_CREDIT, Failure.BROKEN})
BROKEN = re.compile(
    r"cannot find module|command not found|no such file or directory|exec format error|permission denied|"
    r"requires node|unsupported engine|error while loading shared libraries|unknown (option|argument)|"
    r"unexpected argument",
    re.IGNORECASE,
)
"""Words of the system, or of a version that does not know what it is asked: the install is to be mended."""

_SECRETS = re.compile(
    r"\b(?:sk|pk|rk|ghp|gho|ghu|ghs|github_pat|xox[bp]|AIza|crsr|key)[-_]?[A-Za-z0-9_-]{16,}|"
    r"(?<=[Bb]earer )[A-Za-z0-9._~+/=-]{8,}|eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_.-]+"
)
MIN_QUOTE_CHARACTERS = 12
"""Characters from which a line that also stands in the prompt is taken for a part of it."""

MAX_COMPARISONS = 1_000_000
"""Pairs of lines that are compared at most."""


def classify_failure(provider: VendorProgram, words: str) -> Failure | None:
    """What `words` tell of."""
    for fault, pattern in provider.words:
        if pattern.search(words):
            return fault
    return Failure.BROKEN if BROKEN.search(words) else None


def remove_prompt(words: str, prompt: str) -> str:
    """`words` without the lines that quote the prompt; nothing of them where that would take too long."""
    asked = {line for line in map(str.strip, prompt.splitlines()) if len(line) >= MIN_QUOTE_CHARACTERS}
    lines = [line for line in map(str.strip, words.splitlines()) if line]
    if len(asked) * len(lines) > MAX_COMPARISONS:
        return ""
    return "\n".join(
        line
        for line in lines
        if len(line) < MIN_QUOTE_CHARACTERS or not (line in prompt or any(each in line for each in asked))
    )


def redact(words: str, secrets: Iterable[str] = ()) -> str:
    """The end of what a program wrote, as an error may show it: in one line, without secrets."""
    text = _SECRETS.sub("***", " ".join(words.split()))
    for secret in secrets:
        text = text.replace(secret, "***")
    return text[-MAX_REASON_CHARACTERS:]


def make_error(provider: VendorProgram, words: str, stderr: str, shown: str, details: dict[str, Json]) -> GridError:
    """The error for a call that gave no answer. Its `state` is that of the seat; how long it rests where no
    time is told is the core's business (`gridq.execution.circuit_breaker`).

    `words`: what the program gave as its reason, `stderr` what it wrote beside, which counts where that tells
    nothing; `shown`: what an error may hold.
    """
    fault = classify_failure(provider, words) or classify_failure(provider, stderr)
    details = {**details, "reason": shown or "it said nothing"}
    title = provider.title
    if fault is not None:
        details["state"] = str(fault)
    if fault is Failure.REFUSED:
        return StageError(f"{title} refused the request: {details['reason']}", {**details, "status": 400})
    if fault in COOLDOWN_FAILURES:
        return SeatDegraded(f"{title}: {fault}", {**details, "fix": _fix(provider, fault)})
    if fault is Failure.LIMITED:
        until = parse_reset_time(words, datetime.now(UTC))
        if until is None:
            return SeatRateLimited(f"{title}: its rate limit is reached", details)
        details["retry_after"] = left = max(0.0, until - time.time())
        if left < SHORT_LIMIT_SECONDS:
            return SeatRateLimited(f"{title}: its rate limit is reached", details)
        return SeatDegraded(f"{title}: rate limited until {_clock(until)}", details)
    if fault is Failure.NO_MODEL:
        fix = "correct the seat's models: their names are what the program's --model takes"
        return SeatUnavailable(f"{title} does not know the model", {**details, "fix": fix})
    if fault is Failure.OVERLOADED:
        return SeatUnavailable(f"{title}: its service is overloaded", details)
    return SeatUnavailable(f"{title} gave no answer", details)


def _fix(provider: VendorProgram, fault: Failure) -> str:
    if fault is Failure.NO_CREDIT:
        return "top the account up, or wait for its next period"
    if fault is Failure.BROKEN:
        return f"install {provider.title} again, or a newer version; see gridq probe"
    return f"log in on the seat's machine: {provider.log_in}"


def _clock(at: float) -> str:
    """A time as people read it, with the day where it is not today's (UTC)."""
    moment = datetime.fromtimestamp(at, UTC)
    today = moment.date() == datetime.now(UTC).date()
    return moment.strftime("%H:%M UTC" if today else "%-d %B, %H:%M UTC")
