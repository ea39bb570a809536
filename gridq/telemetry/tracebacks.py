"""Tracebacks of user code, for its author and the operator.

A traceback begins with the author's code: the frames of gridq that called it are left out. Keys and tokens
are masked, and its length is bounded.
"""

from __future__ import annotations

import traceback
from pathlib import Path
from types import TracebackType

from gridq.protocol.masking import mask_credentials

MAX_FRAMES = 20
"""The frames that are kept of one exception: the first ones and the last ones."""

MAX_CHARACTERS = 4000
"""The characters that are kept of a whole traceback: its end, which names the exception."""

_OWN_FOLDERS = tuple(str(Path(__file__).parents[2] / name) + "/" for name in ("gridq", "workers"))


def drop_own_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return `trace` from the first frame that is neither gridq's nor asyncio's; whole if all frames are."""
    at = trace
    while at is not None and _is_own(at.tb_frame.f_code.co_filename):
        at = at.tb_next
    return at or trace


def format_user_traceback(exc: BaseException) -> str:
    """Return the traceback of an exception that user code raised, with the lines of code and the messages.

    It is for the operator and the author only: both may contain what another agent sent.
    """
    try:
        shown = traceback.TracebackException(
            type(exc), exc, drop_own_frames(exc.__traceback__), lookup_lines=True, limit=None
        )
        for part in _list_chain(shown):
            if len(part.stack) > MAX_FRAMES:
                half = MAX_FRAMES // 2
                part.stack[half:-half] = [
                    traceback.FrameSummary(f"({len(part.stack) - MAX_FRAMES} more frames)", 0, "…", line="")
                ]
        text = "".join(shown.format(chain=True))
    except Exception as fault:  # the message of an author's exception may raise anything
        text = f"{type(exc).__name__} (its traceback cannot be shown: {type(fault).__name__})"
    text = mask_credentials(text.rstrip()[-4 * MAX_CHARACTERS :])  # a message may have many megabytes
    return text if len(text) <= MAX_CHARACTERS else "…" + text[-MAX_CHARACTERS:]


def _is_own(file: str) -> bool:
    return file.startswith(_OWN_FOLDERS) or "/asyncio/" in file


def _list_chain(shown: traceback.TracebackException) -> list[traceback.TracebackException]:
    """Return an exception and those that led to it."""
    found = [shown]
    for part in found:
        found += [each for each in (part.__cause__, part.__context__) if each is not None]
    return found
