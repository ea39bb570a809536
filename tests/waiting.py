"""Wait for a condition instead of a fixed time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_for(
    read: Callable[[], T],
    seconds: float = 40.0,
    *,
    true: Callable[[T], object] = bool,
    poll: float = 0.02,
    explain: Callable[[], str] = str,
) -> T:
    """Return the first result of `read` for which `true` holds. `read` is called every `poll` seconds.

    `explain` returns more text for the failure, such as a log.
    """
    until = time.monotonic() + seconds
    while not true(found := read()):
        assert time.monotonic() < until, f"not met within {seconds:g} s; last result: {found!r} {explain()}"
        time.sleep(poll)
    return found
