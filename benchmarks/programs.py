"""Measure how much time a program seat adds to the vendor's program.

The same program, argv, environment and prompt run directly and through the seat, in turns. The program is the
tests' fake, which answers as soon as it has started. Each side has its median and its fastest tenth: other
load on the machine makes calls slower, never faster.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks.measure import Figure, Measurement, compute_percentile
from gridq.profiles.profile import StageContext
from tests.fakes.programs import FakePrograms
from workers.profiles.llm.programs.backend import ProgramBackend
from workers.profiles.llm.programs.seat_table import ProgramSeat, make_login
from workers.profiles.llm.programs.vendor import ProgramCall
from workers.profiles.llm.programs.vendors.all_vendors import VENDOR_PROGRAMS

PROMPT = "so it goes on " * 20
BODY = {"model": "echo", "messages": [{"role": "user", "content": PROMPT}]}


def run(*, calls: int = 100) -> list[Measurement]:
    """Return the time that the seat adds to a call, for whole and streamed answers."""
    found: list[Measurement] = []
    with tempfile.TemporaryDirectory(prefix="gridq-bench-") as folder:
        fakes = FakePrograms(Path(folder) / "bin", "claude")
        seat = ProgramSeat.model_validate(
            {"name": "mine", "cli": "claude", "models": [{"name": "echo"}], "home": folder, "program": "/"}
        )
        program = str(fakes.folder / "claude")
        login = make_login(seat.model_copy(update={"program": program}), fakes.environ)
        work, inputs = Path(folder) / "work", Path(folder) / "input"
        work.mkdir()
        inputs.mkdir()
        for streamed in (False, True):
            call = ProgramCall("echo", work, inputs, work, system="Be brief.", streams=streamed)
            argv = [program, *VENDOR_PROGRAMS["claude"].make_arguments(call)]
            backend = ProgramBackend(login)
            alone, through = [], []
            for _ in range(calls):
                began = time.monotonic()
                subprocess.run(
                    argv,
                    input=PROMPT.encode(),
                    capture_output=True,
                    cwd=work,
                    env=dict(login.environment),
                    check=True,
                )
                alone.append(time.monotonic() - began)
                began = time.monotonic()
                _call(backend, streamed)
                through.append(time.monotonic() - began)
            how = "streamed" if streamed else "whole"
            for name, share in (("median", 0.5), ("quickest tenth", 0.1)):
                bare, seated = (
                    compute_percentile(alone, share) * 1e3,
                    compute_percentile(through, share) * 1e3,
                )
                about = f"{how}, {name}: what a seat adds to its program's {bare:.0f} ms"
                found.append(Figure(about, seated - bare, "ms", 30))
    return found


def _call(backend: ProgramBackend, streamed: bool) -> None:
    if streamed:
        for _ in backend.stream("chat/completions", BODY, StageContext(emit=lambda piece: None)):
            pass
    else:
        backend.post("chat/completions", BODY, StageContext())
