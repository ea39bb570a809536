"""Tell the tool calls of a streamed chat apart, whatever an endpoint leaves out.

A piece of a call has an index, and the first piece the id and the name. Some endpoints send every call at
index 0, leave the index out, leave the ids out, or repeat id and name in every piece.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from gridq.protocol.models import Json

MAX_TOOL_CALLS = 1000
"""Tool calls in one answer."""


@dataclass(eq=False)
class OpenCall:
    """A tool call so far: its index in the grid, and what the endpoint stated.

    It is announced to the client once its name is known; until then its arguments are held.
    """

    index: int
    stated_index: int | None
    stated_id: str
    name: str
    arguments: str = ""
    is_announced: bool = False
    held: str = ""


def are_complete(arguments: str) -> bool:
    """Return whether the arguments of a tool call, as far as they have come, are complete JSON."""
    if not arguments.rstrip().endswith(("}", "]", '"')):
        return False
    try:
        json.loads(arguments)
    except ValueError:
        return False
    return True


class CallPieces:
    """Assigns the pieces of the tool calls in one choice to calls with successive indexes."""

    def __init__(self) -> None:
        self._calls: list[OpenCall] = []

    @property
    def are_announced(self) -> bool:
        """True if the client knows of all calls."""
        return all(call.is_announced for call in self._calls)

    def assign(self, pieces: list[dict[str, Json]]) -> list[OpenCall]:
        """Return the call of each piece of one chunk.

        Raises ValueError if an index is not valid.
        """
        return [self._assign(piece, at, len(pieces) == 1) for at, piece in enumerate(pieces)]

    def _assign(self, piece: dict[str, Json], at: int, is_only: bool) -> OpenCall:
        function = piece.get("function") or {}
        index, call_id, name = piece.get("index"), piece.get("id") or "", function.get("name") or ""
        arguments = function.get("arguments") or ""
        if not isinstance(call_id, str) or not isinstance(name, str) or not isinstance(arguments, str):
            raise ValueError("the id, name or arguments of a tool call are no string")
        if index is not None and (type(index) is not int or not 0 <= index < MAX_TOOL_CALLS):
            raise ValueError("a tool call has no valid index")
        known = self._find(index, call_id, name, at, is_only)
        if known is None or _starts_another(known, call_id, name, arguments):
            known = OpenCall(len(self._calls), index, call_id, name)
            self._calls.append(known)
            if len(self._calls) > MAX_TOOL_CALLS:
                raise ValueError("an answer has too many tool calls")
        known.name = known.name or name
        known.stated_id = known.stated_id or call_id
        known.arguments += arguments
        return known

    def _find(self, index: int | None, call_id: str, name: str, at: int, is_only: bool) -> OpenCall | None:
        """Return the call that a piece may continue."""
        same_index = [call for call in reversed(self._calls) if call.stated_index == index]
        same_id = [call for call in same_index if call_id and call.stated_id == call_id]
        if same_id:
            return same_id[0]
        if index is not None:
            return same_index[0] if same_index else None
        if name:
            return None  # without an index a name starts a call
        if not is_only and at < len(self._calls):
            return self._calls[at]
        return self._calls[-1] if self._calls else None


def _starts_another(known: OpenCall, call_id: str, name: str, arguments: str) -> bool:
    """Return whether a piece at the index of `known` begins another call."""
    if not name or not known.name:
        return False
    if call_id and known.stated_id and call_id != known.stated_id:
        return True
    is_repeated = bool(call_id) and not arguments  # the last piece of an endpoint that repeats id and name
    return name != known.name or (are_complete(known.arguments) and not is_repeated)
