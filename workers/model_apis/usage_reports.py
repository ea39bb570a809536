"""Report the usage of an answer while it comes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Protocol

from gridq.profiles.profile import StageContext
from gridq.protocol.models import Usage
from workers.model_apis.api_request import SHAPE_ERRORS
from workers.model_apis.backend import Backend, parse_answer

REPORT_SECONDS = 0.2
"""Interval between two reports."""


class Assembler(Protocol):
    """What knows the usage so far of an answer that comes in parts."""

    def compute_usage(self) -> Usage:
        """Return it. Raises one of SHAPE_ERRORS if the endpoint stated it in an unexpected shape."""


@contextlib.contextmanager
def report_usage(
    context: StageContext, backend: Backend, assembler: Assembler
) -> Iterator[Callable[[], None]]:
    """Yield a function that reports the usage to `context` if it has not done so for REPORT_SECONDS.

    It raises the format error of `backend` for usage in an unexpected shape. The last report follows when
    the block ends or fails.
    """
    next_report = 0.0

    def report() -> None:
        nonlocal next_report
        if time.monotonic() >= next_report:
            context.report(parse_answer(backend, assembler.compute_usage))
            next_report = time.monotonic() + REPORT_SECONDS

    try:
        yield report
    finally:
        with contextlib.suppress(*SHAPE_ERRORS):
            context.report(assembler.compute_usage())
