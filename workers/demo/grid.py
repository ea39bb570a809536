"""A temporary grid: server, router and two workers in a folder that is deleted at the end."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pydantic import SecretStr

from gridq.config.settings import Settings, settings
from gridq.errors import ConfigError, ModelFileError
from workers.model_apis.model_catalogue import load_catalogue
from workers.profiles.gpu.engines import selection
from workers.supervisor.embedded_server import EmbeddedServer
from workers.supervisor.grid_processes import GridProcesses
from workers.supervisor.signals import exit_on_signals

MODEL = "smollm2-135m-instruct"
SEATS = ("local", "cpu")
PROFILES = ("gpu",)


def select_engine(name: str | None) -> tuple[str, str]:
    """Return the engine and a sentence that explains the choice. ConfigError: it is not installed."""
    chosen, reason = selection.choose_engine({selection.ENGINE_VARIABLE: name} if name else os.environ)
    if chosen is None:
        raise ConfigError(
            "No engine for the demo's model is installed",
            {
                "expected": "xllamacpp (a wheel) or llama-cpp-python (built from source)",
                "fix": "pip install xllamacpp",
            },
        )
    return chosen, reason


def check_model() -> None:
    """Raise ConfigError if the package with the demo's model is not installed."""
    try:
        next(model for model in load_catalogue() if model.name == MODEL).locate_file()
    except ModelFileError as exc:
        raise ConfigError(exc.message, exc.details) from None


@contextmanager
def open_demo_grid(engine: str, *, keep: bool) -> Iterator[tuple[Settings, Path]]:
    """Run a grid for the time of the block; yield its settings and its folder.

    All processes are stopped however the block ends, also by Ctrl-C or SIGTERM. The folder is deleted, unless
    `keep` is set or the block failed, so that its logs can be read.
    """
    folder = Path(tempfile.mkdtemp(prefix="gridq-demo-"))
    failed = True
    try:
        with ExitStack() as stack:
            stack.enter_context(exit_on_signals())
            server = stack.enter_context(EmbeddedServer(folder / "server"))
            config = settings().model_copy(
                update={
                    "broker_url": SecretStr(server.url),
                    "home": folder / "home",
                    "profiles": PROFILES,
                }
            )
            env = {selection.ENGINE_VARIABLE: engine, "GRIDQ_DRAIN": "1"}
            stack.enter_context(GridProcesses(config, SEATS, folder=folder / "logs", env=env))
            yield config, folder
        failed = False
    except (KeyboardInterrupt, SystemExit):
        failed = False
        raise
    finally:
        if not keep and not failed:
            shutil.rmtree(folder, ignore_errors=True)
