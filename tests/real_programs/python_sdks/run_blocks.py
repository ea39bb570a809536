"""Run blocks of Python, as a page shows them. Each line of the input is the JSON text of one block.

Each line of the output is a JSON object: what the block printed, and the error that it raised or null:
its type, its text, and the status and the JSON body of the HTTP answer behind it, if there is one.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import traceback
from typing import Any


def run_block(code: str) -> dict[str, Any]:
    """Run a block and return what it printed, and its error."""
    printed = io.StringIO()
    error: dict[str, Any] | None = None
    with contextlib.redirect_stdout(printed):
        try:
            exec(compile(code, "<block>", "exec", dont_inherit=True), {"__name__": "__main__"})
        except Exception as raised:
            traceback.print_exc()
            error = describe(raised)
    return {"printed": printed.getvalue(), "error": error}


def describe(error: BaseException) -> dict[str, Any]:
    """Return what a raised error says, and the HTTP answer of the first of its causes that has one."""
    told = {"type": type(error).__name__, "text": str(error), "status": 0, "body": None}
    cause: BaseException | None = error
    while cause is not None:
        status, body = getattr(cause, "status_code", None), getattr(cause, "body", None)
        if isinstance(status, int):
            return told | {"status": status, "body": body}
        cause = cause.__cause__ or cause.__context__
    return told


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(run_block(json.loads(line))), flush=True)
