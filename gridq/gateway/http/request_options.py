"""Read the headers of a request: the options of its job, the event to resume after, and fallback models."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from gridq.errors import RequestError, first_fault
from gridq.gateway.streaming.resume import EventId, parse_event_id
from gridq.jobs.record import JobOptions

HEADER_PREFIX = b"x-gridq-"
"""The prefix of gridq's own request headers. `idempotency-key` and `last-event-id` are read too."""

_NUMBER = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")
_BOOLEANS = {"1": True, "true": True, "0": False, "false": False}


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """The options that a request's headers set.

    `detach`: the job goes on if the client disconnects. `resume`: the event to resume a stream after.
    `models`: the fallbacks if no seat can take the body's model.
    """

    job_options: JobOptions
    detach: bool = False
    resume: EventId | None = None
    models: tuple[str, ...] = ()


def read_request_options(
    headers: Iterable[tuple[bytes, bytes]], agent: str, *, stream: bool, session: str | None = None
) -> RequestOptions:
    """Return the options that `headers` (names in lower case) set; `session` is used without
    `x-gridq-session`. RequestError names the header that is invalid.
    """
    options: dict[str, Any] = {} if session is None else {"session": session}
    found: set[bytes] = set()
    detach, resume, models = False, None, tuple[str, ...]()
    for name, raw in headers:
        if not (name.startswith(HEADER_PREFIX) or name in (b"idempotency-key", b"last-event-id")):
            continue
        header, text = name.decode("latin-1"), raw.decode("latin-1").strip()
        if name in found:
            raise _make_option_error(header, "this header once")
        found.add(name)
        if name == b"last-event-id":
            resume = parse_event_id(text)
            if resume is None or not resume.job:
                raise _make_option_error(header, "the ID of an event from this grid: <job>/<entry>")
        elif name in FLAG_HEADERS:
            if text.lower() not in _BOOLEANS:
                raise _make_option_error(header, "1 or 0")
            if name == b"x-gridq-detach":
                detach = _BOOLEANS[text.lower()]
            else:
                options[FLAG_HEADERS[name]] = _BOOLEANS[text.lower()]
        elif name == b"x-gridq-agent":
            pass  # gridq.gateway.auth.caller reads it
        elif name in NUMBER_HEADERS:
            if not _NUMBER.fullmatch(text):
                raise _make_option_error(header, NUMBER_HEADERS[name][1])
            options[NUMBER_HEADERS[name][0]] = float(text)
        elif name in TEXT_HEADERS:
            options[TEXT_HEADERS[name][0]] = text
        elif name == b"x-gridq-avoid":
            options["avoid"] = tuple(name.strip() for name in text.split(","))
        elif name == b"x-gridq-models":
            models = tuple(name.strip() for name in text.split(","))
            if not all(models):
                raise _make_option_error(header, "model names, separated by commas")
        else:
            known = ", ".join(sorted(name.decode() for name in KNOWN_HEADERS))
            raise RequestError(
                f"Unknown header: {header[:80]}", {"path": header[:80], "expected": f"one of {known}"}
            )
    try:
        job_options = JobOptions(agent=agent, stream=True if stream else "end", **options)
    except ValidationError as exc:
        field, reason = first_fault(exc)
        header = next(
            (
                name.decode()
                for name, option in _OPTION_OF_HEADER.items()
                if option == field.partition(".")[0]
            ),
            field,
        )
        raise RequestError(f"Invalid header: {header}", {"path": header, "reason": reason}) from None
    # A client with an idempotency key retries after a lost connection, and must then find its job alive.
    return RequestOptions(job_options, detach or job_options.idempotency_key is not None, resume, models)


NUMBER_HEADERS = {
    b"x-gridq-deadline": ("deadline", "seconds, such as 30"),
    b"x-gridq-queue-timeout": ("queue_timeout", "seconds, such as 30"),
    b"x-gridq-budget-cents": ("budget_cents", "a number of cents, such as 0.5"),
}
TEXT_HEADERS = {
    b"x-gridq-priority": ("priority", "interactive or batch"),
    b"x-gridq-session": ("session", "a name"),
    b"x-gridq-name": ("name", "a name"),
    b"x-gridq-prefer": ("prefer", "a seat's name"),
    b"x-gridq-pin": ("pin", "a seat's name"),
    b"idempotency-key": ("idempotency_key", "1 to 255 printable characters"),
}
FLAG_HEADERS = {b"x-gridq-detach": "detach", b"x-gridq-wait-for-seat": "wait_for_seat"}
_OPTION_OF_HEADER = {name: target[0] for name, target in (NUMBER_HEADERS | TEXT_HEADERS).items()} | {
    b"x-gridq-avoid": "avoid"
}
KNOWN_HEADERS = frozenset({*_OPTION_OF_HEADER, *FLAG_HEADERS, b"x-gridq-agent", b"x-gridq-models"})
"""All request headers that the gateway reads as options."""

_HEADER_OF_OPTION = {option: name.decode() for name, option in _OPTION_OF_HEADER.items()} | {
    option: name.decode() for name, option in FLAG_HEADERS.items()
}
_NAMED_OPTION = re.compile(r"\b(wait_for_seat|queue_timeout|budget_cents)\b")


def name_headers(details: dict[str, Any]) -> dict[str, Any]:
    """Return an error's details as a client of a model API can follow them: job options are headers there.

    Elsewhere the options are fields of a body, or arguments.
    """
    path, fix = details.get("path"), details.get("fix")
    if path in ("deadline", "queue_timeout", "budget_cents", "pin", "avoid", "wait_for_seat"):
        details = {**details, "path": _HEADER_OF_OPTION[path]}
    if isinstance(fix, str):
        details = {**details, "fix": _NAMED_OPTION.sub(_name_header, fix)}
    return details


def _name_header(option: re.Match[str]) -> str:
    header = _HEADER_OF_OPTION[option[0]]
    return f"the header {header}: 1" if header.encode() in FLAG_HEADERS else header


def _make_option_error(header: str, expected: str) -> RequestError:
    return RequestError(f"Invalid header: {header}", {"path": header, "expected": expected})
