"""Provide a grid of real processes: server, router and workers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.acceptance.grids import WholeGrid, whole
from tests.acceptance.model_hub import hub  # noqa: F401 - a fixture
from workers.supervisor.embedded_server import EmbeddedServer

STAGES = '''
import os
import subprocess
import sys
import time
from gridq import stage

@stage(effects=["Process"], input="Any", output="Any")
def pid(value):
    """The process that runs it."""
    return os.getpid()

@stage(effects=["Process"], input="Any", output="Any")
def boom(value):
    raise RuntimeError("it went boom")

@stage(effects=["Process"], input="Any", output="Any", timeout=1)
def stubborn(value):
    """Heeds nothing until the file called `value` is there."""
    while not os.path.exists(value):
        time.sleep(0.05)
    return "at last"

SLEEP = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(120)"]
START = (
    "import subprocess, sys; child = subprocess.Popen(sys.argv[2:]); "
    "open(sys.argv[1], 'w').write(f'{child.pid} '); child.wait()"
)

@stage(effects=["Process"], input="Any", output="Any")
def family(value):
    """Starts a child which starts one too, and waits; the file called `value` holds their ids."""
    made = subprocess.Popen([sys.executable, "-c", START, value, *SLEEP], start_new_session=True)
    while not os.path.exists(value) or not os.path.getsize(value):
        time.sleep(0.05)
    with open(value, "a") as file:
        file.write(f"{made.pid}\\n")
    return made.wait()
'''


@pytest.fixture(scope="module")
def whole_grid(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeGrid]:
    """A router and the seats `local` (with a module of stages) and `bench`, with 4 slots each.

    This process's app and client use the same grid.
    """
    folder = tmp_path_factory.mktemp("grid")
    seats = {"local": 4, "bench": 4}
    with whole(folder, server.url, seats, stages=STAGES, retry_backoff=0.2, drain=2) as grid:
        yield grid
