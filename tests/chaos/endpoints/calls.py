"""What the endpoints know of a call: the text that names it, its answer, and its line in their file.

The system text of a call names its job (or the client's request) and its stage; the prompt is the stage's
input. The answer is a digest of stage and prompt. So an answer shows whether the stage got the right input,
and a stream whether its pieces came in order and once.

Each call has a serial number, and its tokens in are `SERIAL_BASE` plus that. So each use in the ledger names
the one call that it stands for.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from tests.fakes.vendor_apis import Used

MODEL = "chaos-1"
"""The model that every endpoint serves."""
MAX_TOKENS = 100
SERIAL_BASE = 1_000_000
"""More tokens than any prompt is estimated to have."""
_MARK = "chaos-call "

CallOutcome = Literal["answered", "refused", "cut", "silent"]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an endpoint. `source`: the job or the client's request that it is for.

    `outcome`: what the endpoint meant to do. `complete`: the whole answer was sent. `begun`, `ended`: ms of
    the monotonic clock; `ended` 0: it did not end.
    """

    serial: int
    endpoint: str
    source: str
    stage: str
    outcome: CallOutcome
    begun: int
    ended: int = 0
    complete: bool = False

    @property
    def answered(self) -> bool:
        """True if its client can have the whole answer."""
        return self.outcome == "answered" and self.complete


def draw_usage(serial: int) -> Used:
    """Return the tokens of a call."""
    return Used(SERIAL_BASE + serial, 16 + serial % 64)


def make_system_text(source: str, stage: str) -> str:
    """Return the system text of a call."""
    return _MARK + json.dumps([source, stage], separators=(",", ":"))


def parse_system_text(text: str) -> tuple[str, str]:
    """Return the source and the stage that a system text names. ValueError: it is another text."""
    if not text.startswith(_MARK):
        raise ValueError(f"not a call of a chaos run: {text[:80]!r}")
    source, stage = json.loads(text.removeprefix(_MARK))
    return source, stage


def make_answer(stage: str, prompt: str) -> str:
    """Return the answer of every endpoint."""
    return hashlib.sha256(f"{stage} {prompt}".encode()).hexdigest()[:32]


def read_calls(file: Path) -> dict[int, Call]:
    """Return the calls in the endpoints' file, by serial number."""
    calls: dict[int, Call] = {}
    for line in file.read_text("ascii").splitlines() if file.exists() else ():
        fields = json.loads(line)
        if "source" in fields:
            calls[fields["serial"]] = Call(**fields)
        else:
            calls[fields["serial"]] = replace(calls[fields["serial"]], **fields)
    return calls
