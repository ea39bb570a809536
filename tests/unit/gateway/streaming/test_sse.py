"""The frames of the model APIs' streams."""

from __future__ import annotations

import pytest

from gridq.gateway.streaming import sse


@pytest.mark.parametrize(
    ("piece", "event"),
    [
        (b'{"type":"message_stop"}', b"message_stop"),
        (b'{"index":0,"type":"content_block_stop"}', b"content_block_stop"),
        (b'{"choices":[]}', b"message"),
        (b'"a text"', b"message"),
        (b'{"a":1,"type":"x\\nevent: y"}', b"message"),
    ],
)
def test_an_anthropic_frame_has_its_type_as_event_name(piece: bytes, event: bytes) -> None:
    frame = sse.format_event(piece, id="j/1-0", event=sse.get_event_type(piece))
    assert frame == b"id: j/1-0\nevent: " + event + b"\ndata: " + piece + b"\n\n"
