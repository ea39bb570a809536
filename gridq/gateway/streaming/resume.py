"""Resume a stream: the IDs of events, and which of them a client has received.

Each event that can be resumed after has the ID `<job>/<entry>`; the entry is the ID of an entry of the job's
stream in Redis, `<milliseconds>-<number>`. A client that lost its connection sends the last ID that it
received to any gateway, as the header Last-Event-ID or, at `/jobs/{id}/events`, as `?after=`.
`gridq.gateway.streaming.relay.Relay.follow` then continues after that entry.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from gridq.errors import RequestError
from gridq.jobs.record import JOB_ID

BEGINNING = "0"
"""The entry to resume after for the whole stream."""

SEQUENCE_NUMBER = re.compile(rb'\{"type":"[a-z_.]{1,64}","sequence_number":([0-9]{1,18})')
"""The start of an event of OpenAI's Responses, with its number."""

_EVENT_ID = re.compile(rf"(?:({JOB_ID.pattern})/)?([0-9]{{1,18}}(?:-[0-9]{{1,18}})?)")


class EventId(NamedTuple):
    """The ID of an event: its job (`""` if only the entry was given) and its entry in the job's stream."""

    job: str
    entry: str

    def __str__(self) -> str:
        return f"{self.job}/{self.entry}"


def parse_event_id(text: str) -> EventId | None:
    """Return the event ID `<job>/<entry>` or `<entry>`, None if `text` is neither.

    >>> parse_event_id("7f1c/1764330000000-0")
    EventId(job='7f1c', entry='1764330000000-0')
    """
    match = _EVENT_ID.fullmatch(text)
    return EventId(match[1] or "", match[2]) if match else None


def find_resume_entry(job: str, text: str | None) -> str:
    """Return the entry of `job`'s stream to resume after: `BEGINNING` if a client sent no event ID.

    Raises RequestError if the ID is invalid or belongs to another job.
    """
    if not text:
        return BEGINNING
    event = parse_event_id(text)
    if event is None or event.job not in ("", job):
        raise RequestError(
            "The event ID does not belong to this job",
            {
                "path": "after",
                "expected": f"{job}/<entry>, the `id:` of an event",
                "fix": "omit it to read from the beginning",
            },
        )
    return event.entry


def parse_entry_id(entry_id: str | bytes) -> tuple[int, int]:
    """Return the ID of a stream entry as a tuple that can be compared.

    >>> parse_entry_id("1700000000000-3") > parse_entry_id("0")
    True
    """
    ms, _, number = (entry_id.decode() if isinstance(entry_id, bytes) else entry_id).partition("-")
    return int(ms), int(number or 0)
