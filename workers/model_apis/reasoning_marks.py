"""Mark what a model wrote for itself, so that only this model gets it back.

Messages require a signature of each thinking block. Endpoints of the OpenAI API format send reasoning without
one, in a field of their own, and some want it back in the next request. The grid's mark in the place of the
signature names the field and the origin. No vendor's signature contains a dot. The signatures of other
endpoints with Messages than Anthropic's own, who would reject them, name their origin as well.

Responses have `encrypted_content` for it. The grid's names the origin, behind it what a vendor with Responses
sent, or the fields of the chat message in JSON and base64, which any client can read.
"""

from __future__ import annotations

import base64
import binascii
import json
import re

from gridq.protocol.models import Json
from workers.model_apis.identity.origins import MARK, REASONING_FIELDS, STATE_FIELDS

MAX_STATE_VALUES = 1_000_000
"""Values, such as objects and strings, in the states of all items of a request, about 100 MB of memory. A
model's reasoning has a few in each item.
"""

_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)


def make_mark(field: str, origin: str) -> str:
    """Return the mark of reasoning that `origin` sent in `field`."""
    return f"{MARK}{field}.{origin}"


SIGNATURES = {"thinking": "signature", "redacted_thinking": "data"}
"""By type of a block: the field that only its vendor can read."""


def is_signed(block: dict[str, Json]) -> bool:
    """Return whether a block of thinking is a vendor's, without a mark."""
    signature = block.get(SIGNATURES[block["type"]])
    return isinstance(signature, str) and bool(signature) and not signature.startswith(MARK)


def mark_block(block: dict[str, Json], origin: str) -> dict[str, Json]:
    """Return a block of thinking whose signature names its origin."""
    field = SIGNATURES[block["type"]]
    return {**block, field: mark_content(block[field], origin)} if block.get(field) else block


def restore_block(block: dict[str, Json], origin: str) -> dict[str, Json]:
    """Return a block of thinking without the mark of `mark_block`, if it is that of `origin`."""
    field, mark = SIGNATURES[block["type"]], mark_content("", origin)
    stated = block.get(field)
    is_own = isinstance(stated, str) and stated.startswith(mark)
    return {**block, field: str(stated)[len(mark) :]} if is_own else block


def find_field(block: dict[str, Json], origin: str) -> str | None:
    """Return the field in which `origin` sent the reasoning of a thinking block, None if it did not."""
    signature = block.get("signature")
    field = signature[len(MARK) :].partition(".")[0] if isinstance(signature, str) else ""
    # a client can write any mark: it names no field but one of reasoning
    return field if field in REASONING_FIELDS and signature == make_mark(field, origin) else None


def mark_content(content: str, origin: str) -> str:
    """Return the `encrypted_content` of an item of reasoning that `origin` wrote."""
    return f"{MARK}{origin}.{content}"


def find_content(item: dict[str, Json], origin: str) -> str | None:
    """Return the content that `mark_content` marked, None if another origin wrote it, or nobody marked it."""
    stated = item.get("encrypted_content")
    mark = mark_content("", origin)
    return stated[len(mark) :] if isinstance(stated, str) and stated.startswith(mark) else None


def is_marked(item: dict[str, Json]) -> bool:
    """Return whether the `encrypted_content` of an item of reasoning names an origin."""
    stated = item.get("encrypted_content")
    return isinstance(stated, str) and stated.startswith(MARK)


def pack_state(state: dict[str, Json], origin: str) -> str:
    """Return the `encrypted_content` that brings STATE_FIELDS of a chat message back to `origin`."""
    text = json.dumps(state, ensure_ascii=False, separators=(",", ":"))
    encoded = base64.b64encode(text.encode("utf-8", "surrogatepass")).decode("ascii")
    return mark_content(encoded, origin)


class StateReader:
    """Reads the fields of `pack_state` back from the items of one request."""

    def __init__(self, origin: str) -> None:
        self._origin = origin
        self._values = 0

    def read(self, item: dict[str, Json]) -> dict[str, Json]:
        """Return the fields in an item, none if another origin wrote them.

        Raises OverflowError if the items so far have more than MAX_STATE_VALUES values: a client can write
        any content, and tiny values take twenty times as much memory as text.
        """
        content = find_content(item, self._origin)
        if content is None:
            return {}
        try:
            raw = base64.b64decode(content, validate=True)
            self._values += _count_values(raw)
            if self._values > MAX_STATE_VALUES:
                raise OverflowError
            state = json.loads(raw.decode("utf-8", "surrogatepass"))
        except (binascii.Error, ValueError, RecursionError):
            return {}
        if not isinstance(state, dict):
            return {}
        types: dict[str, type] = dict.fromkeys(STATE_FIELDS, str) | {"reasoning_details": list}
        return {name: state[name] for name in types if isinstance(state.get(name), types[name])}


def _count_values(raw: bytes) -> int:
    """Return how many values a JSON text has, or more if they are few."""
    signs = raw.count(b",") + raw.count(b"[") + raw.count(b"{")
    if signs <= MAX_STATE_VALUES // 1000:
        return signs
    bare = _STRING.sub(b"", raw)
    return bare.count(b",") + bare.count(b"[") + bare.count(b"{")
