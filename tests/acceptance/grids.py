"""A whole grid of real processes in one block: routers, workers, stages of one's own, a client."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gridq.client import Client
from gridq.config.settings import Settings
from tests.fakes.bench_profile import BENCH
from tests.grid_environment import use_grid
from workers.supervisor.grid_processes import GridProcesses

NOTE = '''
import os

def note(file, line):
    """One more line in a file outside the server, in one write."""
    handle = os.open(file, os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o600)
    os.write(handle, f"{line}\\n".encode())
    os.close(handle)
'''
"""The beginning of a module of stages that leave a trace."""


@dataclass
class WholeGrid:
    """A grid that runs: its settings, a client, its children by name."""

    config: Settings
    client: Client
    home: GridProcesses


@contextmanager
def whole(
    folder: Path,
    url: str,
    seats: Mapping[str, int],
    *,
    stages: str = "",
    terms: str = "",
    routers: int = 1,
    env: Mapping[str, str] | None = None,
    **given: Any,
) -> Iterator[WholeGrid]:
    """A grid on the server at `url`, each part a process of its own, and this process pointed at it.

    `seats` are their names and slots, `terms` what else each of their tables says, `stages` the text of a
    module of stages for the seat `local` (`own_stages`), `given` settings of this process
    and of the children, `env` the children's alone. What they write stands in `folder`.
    """
    (folder / "own_stages.py").write_text(stages)
    (folder / "home").mkdir(mode=0o700)
    concurrency = "".join(f"[{name}]\nconcurrency = {number}\n{terms}" for name, number in seats.items())
    (folder / "home" / "seats.toml").write_text(concurrency)
    config = Settings(
        broker_url=url, prefix=f"w{secrets.token_hex(3)}:", home=folder / "home", profiles=(BENCH,), **given
    )  # fmt: skip
    told = {f"GRIDQ_{name.upper()}": str(value) for name, value in given.items()}
    if stages:
        told["GRIDQ_STAGES"] = "own_stages"
    children = {**told, "PYTHONPATH": str(folder), **(env or {})}
    with (
        use_grid(config) as client,
        GridProcesses(config, list(seats), routers=routers, folder=folder / "logs", env=children) as home,
    ):
        yield WholeGrid(config, client, home)
