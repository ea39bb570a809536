"""Parse server-sent events incrementally (WHATWG HTML, section 9.2)."""

from __future__ import annotations

import codecs
from typing import NamedTuple


class EventTooLong(ValueError):
    """One event is longer than `max_characters`."""


class SseEvent(NamedTuple):
    """One event: the id of the last event that had one, the event's kind, and its data."""

    id: str
    kind: str
    data: str


class SseParser:
    """Splits the bytes of one connection into events.

    Lines may end in LF, CR or CRLF, an event may have several data lines, and a character may be split
    between two chunks. Comments (`: ping`) and `retry` are dropped. `max_characters` bounds the text between
    two events; None means no bound.
    """

    def __init__(self, max_characters: int | None = None) -> None:
        self._max_characters = max_characters
        self._decode = codecs.getincrementaldecoder("utf-8-sig")("replace").decode
        self._rest = ""
        self._id = self._kind = ""
        self._data: list[str] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """Return the events that `chunk` completes. Raises EventTooLong."""
        return self._parse_lines(self._decode(chunk), is_final=False)

    def end(self) -> list[SseEvent]:
        """Return the events that the end of the stream completes, even without a blank line."""
        events = self._parse_lines(self._decode(b"", True) + "\n", is_final=True)
        return events + self._dispatch()

    def _parse_lines(self, text: str, *, is_final: bool) -> list[SseEvent]:
        self._size += len(text)
        if self._max_characters is not None and self._size > self._max_characters:
            raise EventTooLong(f"one of its events has more than {self._max_characters} characters")
        text = self._rest + text
        carriage_return = ""
        if text.endswith("\r") and not is_final:
            text, carriage_return = text[:-1], "\r"  # the LF of this CRLF may be in the next chunk
        if "\r" in text:
            text = text.replace("\r\n", "\n").replace("\r", "\n")
        lines = text.split("\n")
        self._rest = lines.pop() + carriage_return
        events: list[SseEvent] = []
        for line in lines:
            if not line:
                events += self._dispatch()
                continue
            field, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if field == "data":
                self._data.append(value)
            elif field == "event":
                self._kind = value
            elif field == "id":
                self._id = value
        return events

    def _dispatch(self) -> list[SseEvent]:
        self._size = 0
        kind, self._kind = self._kind or "message", ""
        if not self._data:
            return []
        data, self._data = "\n".join(self._data), []
        return [SseEvent(self._id, kind, data)]
