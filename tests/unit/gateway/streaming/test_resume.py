"""The IDs of events: what is one, and to which job it belongs."""

from __future__ import annotations

import pytest

from gridq.errors import RequestError
from gridq.gateway.streaming.resume import (
    BEGINNING,
    EventId,
    find_resume_entry,
    parse_entry_id,
    parse_event_id,
)


@pytest.mark.parametrize("event", [EventId("7f1c", "1764330000000-0"), EventId("a.b_c-d", "0")])
def test_an_event_id_is_read_as_it_is_written(event: EventId) -> None:
    assert parse_event_id(str(event)) == event


@pytest.mark.parametrize(
    "text",
    ["", "7f1c", "7f1c/", "/5", "7f1c/5-", "7f1c/-5", "a/b/5", "7f1c/5\n", "7f1c/٣", "7f1c/" + "1" * 19],
)
def test_anything_else_is_not_an_event_id(text: str) -> None:
    assert parse_event_id(text) is None


def test_a_stream_is_resumed_after_an_event_of_its_own_job() -> None:
    assert find_resume_entry("7f1c", None) == BEGINNING
    assert find_resume_entry("7f1c", "7f1c/5-1") == "5-1"
    assert find_resume_entry("7f1c", "5-1") == "5-1"
    for other in ("7f1d/5-1", "five"):
        with pytest.raises(RequestError) as refused:
            find_resume_entry("7f1c", other)
        assert refused.value.details["path"] == "after"


def test_entries_are_compared_as_numbers() -> None:
    assert parse_entry_id("9-10") > parse_entry_id("9-9") > parse_entry_id(b"9") > parse_entry_id(BEGINNING)
