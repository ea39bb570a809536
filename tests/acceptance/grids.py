"""Run a grid of real processes in a block: routers, workers, custom stages, a client."""

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
"""The beginning of a module of stages that write to a file."""


@dataclass
class WholeGrid:
    """A running grid: its settings, a client, and its processes."""

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
    table: str = "",
    profiles: tuple[str, ...] = (BENCH,),
    routers: int = 1,
    env: Mapping[str, str] | None = None,
    **given: Any,
) -> Iterator[WholeGrid]:
    """Run a grid on the server at `url`, each part as a process, and use it in this process.

    `seats` maps names to slots. `terms` is added to the table of each seat. `table` is the whole text of a
    seats file, in place of that, whose `profiles` are enabled. `stages` is the text of a module of stages for
    the seat `local`. `given` are settings for this process and its children, `env` is for the children only.
    All files are in `folder`.
    """
    (folder / "own_stages.py").write_text(stages)
    (folder / "home").mkdir(mode=0o700)
    concurrency = "".join(f"[{name}]\nconcurrency = {number}\n{terms}" for name, number in seats.items())
    (folder / "home" / "seats.toml").write_text(table or concurrency)
    config = Settings(
        broker_url=url, prefix=f"w{secrets.token_hex(3)}:", home=folder / "home", profiles=profiles, **given
    )  # fmt: skip
    variables = {f"GRIDQ_{name.upper()}": str(value) for name, value in given.items()}
    if stages:
        variables["GRIDQ_STAGES"] = "own_stages"
    children = {**variables, "PYTHONPATH": str(folder), **(env or {})}
    with (
        use_grid(config) as client,
        GridProcesses(config, list(seats), routers=routers, folder=folder / "logs", env=children) as home,
    ):
        yield WholeGrid(config, client, home)
