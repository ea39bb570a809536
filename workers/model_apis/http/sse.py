"""Parse server-sent events incrementally (WHATWG HTML, section 9.2)."""

from __future__ import annotations

import codecs

MAX_EVENT_CHARACTERS = 8 * 1024 * 1024


class EventTooLong(ValueError):
    """One event is longer than `MAX_EVENT` characters."""


class EventStream:
    """Takes bytes as they arrive and returns the data of each complete event.

    Lines may end in LF, CR or CRLF, an event may have several data lines, and a character may be split
    between two chunks. Comments (`: ping`) and the fields `event`, `id` and `retry` are dropped.
    """

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8-sig")("replace").decode
        self._rest = ""
        self._data: list[str] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[str]:
        """Return the data of every event that `chunk` completes. Raises EventTooLong."""
        return self._parse_lines(self._decode(chunk), is_final=False)

    def end(self) -> list[str]:
        """Return the data of the events that the end of the stream completes, even without a blank line."""
        events = self._parse_lines(self._decode(b"", True) + "\n", is_final=True)
        return events + self._dispatch()

    def _parse_lines(self, text: str, *, is_final: bool) -> list[str]:
        self._size += len(text)
        if self._size > MAX_EVENT_CHARACTERS:
            raise EventTooLong(f"An event of more than {MAX_EVENT_CHARACTERS} characters")
        text = self._rest + text
        carriage_return = ""
        if text.endswith("\r") and not is_final:
            text, carriage_return = text[:-1], "\r"  # the LF of this CRLF may be in the next chunk
        lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        self._rest = lines.pop() + carriage_return
        events: list[str] = []
        for line in lines:
            if not line:
                events += self._dispatch()
                continue
            field, _, value = line.partition(":")
            if field == "data":
                self._data.append(value.removeprefix(" "))
        return events

    def _dispatch(self) -> list[str]:
        self._size = 0
        if not self._data:
            return []
        data, self._data = "\n".join(self._data), []
        return [data]
