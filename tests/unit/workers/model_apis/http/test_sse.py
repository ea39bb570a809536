"""Server-sent events, however the bytes fall."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.model_apis.http import sse
from workers.model_apis.http.sse import EventStream, EventTooLong

RAW = "\ufeffdata: Zürich\r\n\r\n: ping\n\nevent: x\ndata:a\ndata:  b\nid: 3\n\n\ndata\r\rdata: last".encode()
EVENTS = ["Zürich", "a\n b", "", "last"]


@given(st.lists(st.integers(0, len(RAW)), max_size=12))
def test_any_cut_gives_the_same_events(cuts: list[int]):
    stream = EventStream()
    found: list[str] = []
    edges = sorted({0, len(RAW), *cuts})
    for start, end in pairwise(edges):
        found += stream.feed(RAW[start:end])
    found += stream.end()
    assert found == EVENTS


def test_an_event_comes_as_soon_as_it_is_whole():
    stream = EventStream()
    assert stream.feed(b"data: 1\n") == []
    assert stream.feed(b"\n") == ["1"]


def test_a_sender_that_never_ends_an_event(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sse, "MAX_EVENT_CHARACTERS", 100)
    stream = EventStream()
    for _ in range(50):
        stream.feed(b"data: 1\n\n")
    with pytest.raises(EventTooLong):
        stream.feed(b"data: 1\n" * 50)
