"""A reader of a job's events: it resumes after the last piece, and gives up a silent connection."""

from __future__ import annotations

import json

import pytest

from gridq.client import event_stream
from gridq.client.event_stream import (
    MAX_SILENCE_SECONDS,
    MIN_SILENCE_SECONDS,
    EventStream,
)
from gridq.errors import GatewayUnreachable, JobNotFound, KeyBusy, StreamTrimmed
from gridq.jobs.waiting import Piece

TEXT = (
    "retry: 1000\n\n"
    ": keep-alive\n\n"
    'event: stage\ndata: {"path":"root"}\n\n'
    'id: j/1-0\nevent: piece\ndata: {"path":"root","piece":"Grüße\\n"}\n\n'
    ":\n"
    'id: j/2-0\r\nevent: piece\r\ndata:{"path":"root","piece":[1]}\r\n\r\n'
    'id: j/3-0\nevent: end\ndata: {"job":"j"}\n\n'
).encode()


def test_the_next_connection_resumes_after_the_last_piece() -> None:
    reader = EventStream("j", None)
    assert "last-event-id" not in reader.build_call().headers
    half = TEXT.index(b"id: j/2-0") + 20
    assert list(reader.feed(TEXT[:half])) == [Piece("root", "Grüße\n")]
    call = reader.build_call()
    assert (call.path, call.headers["last-event-id"], call.wait) == (
        "/jobs/j/events",
        "j/1-0",
        MAX_SILENCE_SECONDS,
    )
    # What was half there is sent again, whole.
    assert list(reader.feed(TEXT[TEXT.index(b"id: j/2-0") :])) == [Piece("root", [1])]
    assert reader.ended
    assert reader.should_disconnect()
    assert not reader.has_timed_out()


def test_an_error_in_the_stream_is_raised() -> None:
    body = {"error": {"code": "stream.trimmed", "message": "gone", "path": "j", "request_id": "r"}}
    with pytest.raises(StreamTrimmed) as caught:
        list(EventStream("j", None).feed(b"event: error\ndata: " + json.dumps(body).encode() + b"\n\n"))
    assert caught.value.details == {"path": "j"}


def test_an_invalid_id_is_not_found() -> None:
    with pytest.raises(JobNotFound):
        EventStream("no/job", None)


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(event_stream, "time", made)
    return made


def test_only_a_piece_restarts_the_timeout(clock: Clock) -> None:
    reader = EventStream("j", 40.0)
    assert reader.build_call().wait == MAX_SILENCE_SECONDS
    clock.now += 30
    assert list(reader.feed(b": keep-alive\n\n")) == []
    assert reader.should_disconnect()  # it may be silent for longer than is left
    assert not reader.has_timed_out()
    assert reader.get_pause(None) == 0
    assert reader.build_call().wait == 10
    assert list(reader.feed(b'id: j/1-0\nevent: piece\ndata: {"path":"root","piece":1}\n\n'))
    clock.now += 39
    assert not reader.has_timed_out()
    assert reader.build_call().wait == MIN_SILENCE_SECONDS
    assert not reader.should_disconnect()
    clock.now += 1
    assert reader.has_timed_out()


def test_a_slow_reader_does_not_time_out(clock: Clock) -> None:
    reader = EventStream("j", 5.0)
    reader.build_call()
    for _ in reader.feed(TEXT[: TEXT.index(b"id: j/3-0")]):
        clock.now += 60
    assert not reader.has_timed_out()
    assert not reader.should_disconnect()


def test_without_a_timeout_an_outage_is_survived_for_a_while(clock: Clock) -> None:
    reader = EventStream("j", None)
    away = GatewayUnreachable("away")
    clock.now += event_stream.MAX_OUTAGE_SECONDS
    assert reader.get_pause(away) == event_stream.RETRY_PAUSE_SECONDS
    list(reader.feed(b": keep-alive\n\n"))
    clock.now += event_stream.MAX_OUTAGE_SECONDS
    assert reader.get_pause(away) == event_stream.RETRY_PAUSE_SECONDS
    clock.now += 1
    assert reader.get_pause(None) == event_stream.RETRY_PAUSE_SECONDS  # it was there, and ended
    with pytest.raises(GatewayUnreachable):
        reader.get_pause(away)


def test_a_limited_key_waits_for_retry_after() -> None:
    assert EventStream("j", None).get_pause(KeyBusy("busy", {"retry_after": 3})) == 3
