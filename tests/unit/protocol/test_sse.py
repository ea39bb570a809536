"""The parser of server-sent events gives the same events wherever the bytes are cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridq.protocol.sse import EventTooLong, SseEvent, SseParser

RAW = (
    "\ufeffretry: 1000\n\n"
    "data: Zürich\r\n\r\n"
    ": ping\n\n"
    "event: x\n:\ndata:a\ndata:  b\nid: j/3-0\n\n\n"
    "event: dropped\n\n"
    "data\r\r"
    "id: j/4-0\revent: y\rdata: last"
).encode()
EVENTS = [
    SseEvent("", "message", "Zürich"),
    SseEvent("j/3-0", "x", "a\n b"),
    SseEvent("j/3-0", "message", ""),
    SseEvent("j/4-0", "y", "last"),
]


@given(st.lists(st.integers(0, len(RAW)), max_size=12))
def test_events_do_not_depend_on_where_the_bytes_are_cut(cuts: list[int]) -> None:
    parser = SseParser()
    found: list[SseEvent] = []
    for start, end in pairwise(sorted({0, len(RAW), *cuts})):
        found += parser.feed(RAW[start:end])
    found += parser.end()
    assert found == EVENTS


def test_an_event_is_returned_once_it_is_complete() -> None:
    parser = SseParser()
    assert parser.feed(b"event: piece\ndata: 1\n") == []
    assert parser.feed(b"\n") == [SseEvent("", "piece", "1")]


def test_an_event_may_not_exceed_the_bound() -> None:
    parser = SseParser(100)
    for _ in range(50):
        parser.feed(b"data: 1\n\n")
    with pytest.raises(EventTooLong):
        parser.feed(b"data: 1\n" * 50)
