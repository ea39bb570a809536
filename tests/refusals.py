"""Check the fields that every 429 and 503 of a gateway has."""

from __future__ import annotations

import math
from typing import Any

import httpx

REQUIRED_FIELDS = {"code", "bottleneck", "capability", "position", "starts_in", "retry_after", "fix"}


def check_refusal(reply: httpx.Response, status: int, code: str) -> Any:
    """Return the error of a refusal, which must have this status and code, and all required fields."""
    assert (reply.status_code, reply.headers["x-gridq-code"]) == (status, code), reply.text
    body = reply.json()
    error = body.get("error", body)
    assert error.keys() >= REQUIRED_FIELDS, f"missing: {REQUIRED_FIELDS - error.keys()}"
    assert error["bottleneck"]
    assert error["fix"]
    assert int(reply.headers["retry-after"]) == max(1, math.ceil(error["retry_after"]))
    return error
