"""A whole grid of real processes: server, router, workers, each its own `celery` process."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gridq.client import Client
from gridq.settings import Settings
from tests.pointed import pointed_at
from workers.embedded import EmbeddedServer
from workers.home import Home

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


@dataclass
class WholeGrid:
    """A grid that runs: its settings, a client, its children by name."""

    config: Settings
    client: Client
    home: Home


@pytest.fixture(scope="module")
def whole_grid(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeGrid]:
    """Router, `local` (with a module of stages) and `bench` (4 lanes), and this process's app and client
    pointed at them.
    """
    folder: Path = tmp_path_factory.mktemp("grid")
    (folder / "own_stages.py").write_text(STAGES)
    (folder / "home").mkdir()
    (folder / "home" / "seats.toml").write_text("[bench]\nlanes = 4\n")
    config = Settings(
        broker_url=server.url,
        prefix=f"w{secrets.token_hex(3)}:",
        home=folder / "home",
        profiles=("bench",),
        retry_backoff=0.2,
    )
    env = {
        "GRIDQ_STAGES": "own_stages",
        "PYTHONPATH": str(folder),
        "GRIDQ_RETRY_BACKOFF": "0.2",
        "GRIDQ_DRAIN": "2",
    }
    with (
        pointed_at(config) as client,
        Home(config, ["local", "bench"], folder=folder / "logs", env=env) as home,
    ):
        yield WholeGrid(config, client, home)
