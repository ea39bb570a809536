"""Server-sent events, parsed as the bytes come in (WHATWG HTML, section 9.2)."""

from __future__ import annotations

import codecs

MAX_EVENT = 8 * 1024 * 1024


class EventTooLong(ValueError):
    """One event is longer than `MAX_EVENT` characters."""


class EventStream:
    """Feed it bytes as they come; it hands back the data of each event that is complete.

    Lines may end in LF, CR or CRLF, an event may have several data lines, a character may be cut between two
    chunks. Comments (`: ping`) and the fields `event`, `id` and `retry` are dropped.
    """

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8-sig")("replace").decode
        self._rest = ""
        self._data: list[str] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[str]:
        """The data of every event that `chunk` completes. EventTooLong: the sender never ends one."""
        return self._lines(self._decode(chunk), final=False)

    def end(self) -> list[str]:
        """What the end of the stream completes: an event whose last blank line is missing counts as well."""
        events = self._lines(self._decode(b"", True) + "\n", final=True)
        return events + self._dispatch()

    def _lines(self, text: str, *, final: bool) -> list[str]:
        self._size += len(text)
        if self._size > MAX_EVENT:
            raise EventTooLong(f"An event of more than {MAX_EVENT} characters")
        text = self._rest + text
        held = ""
        if text.endswith("\r") and not final:
            text, held = text[:-1], "\r"  # the LF of this CRLF may be in the next chunk
        lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        self._rest = lines.pop() + held
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
