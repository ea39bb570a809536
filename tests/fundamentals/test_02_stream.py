"""Read an answer piece by piece while it is made."""

from __future__ import annotations

import gridq
from gridq.client import Client

THREE_TOKENS = {"root": {"op": "Stage", "id": "bench_tokens", "config": {"n": 3, "ms": 10}}}


def test_stream(grid: Client) -> None:
    """Ask for the stream when you submit; `gridq.stream` yields each piece and ends with the job."""
    job = gridq.submit(THREE_TOKENS, stream=True)
    pieces = [piece.value for piece in gridq.stream(job, timeout=30)]
    assert len(pieces) == 3
    assert "".join(pieces) == gridq.result(job, timeout=30)
