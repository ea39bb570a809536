"""Wait for a condition instead of for a time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_for(
    look: Callable[[], T], seconds: float = 40.0, *, true: Callable[[T], object] = bool, poll: float = 0.02
) -> T:
    """The first of what `look()` gives that is `true`, looked at each `poll` seconds."""
    until = time.monotonic() + seconds
    while not true(found := look()):
        assert time.monotonic() < until, f"it did not come about; at last: {found!r}"
        time.sleep(poll)
    return found
