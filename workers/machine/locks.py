"""File locks that end with the process that holds them."""

from __future__ import annotations

import fcntl
import time

INTERVAL_SECONDS = 0.02


def take_lock(file: int, timeout: float) -> bool:
    """Lock an open file for this process alone, within `timeout` seconds. False: another process holds the
    lock.

    A short timeout is always needed: a program that only checks the lock holds it for a moment.
    """
    end = time.monotonic() + timeout
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() > end:
                return False
            time.sleep(INTERVAL_SECONDS)
        else:
            return True
