"""What every 429 and 503 of a gateway says, whatever refused the request."""

from __future__ import annotations

import math
from typing import Any

import httpx

SAYS = {"code", "bottleneck", "capability", "position", "starts_in", "retry_after", "fix"}


def check_refusal(reply: httpx.Response, status: int, code: str) -> Any:
    """The error in the body of a refusal, which must be this one and say all that each says."""
    assert (reply.status_code, reply.headers["x-gridq-code"]) == (status, code), reply.text
    body = reply.json()
    error = body.get("error", body)
    assert error.keys() >= SAYS, f"it lacks {SAYS - error.keys()}"
    assert error["bottleneck"]
    assert error["fix"]
    assert int(reply.headers["retry-after"]) == max(1, math.ceil(error["retry_after"]))
    return error
