"""A whole grid for a few seconds: server, router and two workers in a temporary folder."""

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
from workers.profiles.gpu import engines
from workers.supervisor.embedded_server import EmbeddedServer
from workers.supervisor.grid_processes import GridProcesses
from workers.supervisor.signals import exit_on_signals

MODEL = "smollm2-135m-instruct"
SEATS = ("local", "cpu")
PROFILES = ("gpu",)


def chosen_engine(asked: str | None) -> tuple[str, str]:
    """(the engine, a sentence on which and why). ConfigError: none, or not the one asked for."""
    name, why = engines.choose_engine({engines.ENGINE_VARIABLE: asked} if asked else os.environ)
    if name is None:
        raise ConfigError(
            "No engine is installed that can run the demo's model",
            {
                "expected": "xllamacpp (a wheel) or llama-cpp-python (compiled)",
                "fix": "pip install xllamacpp",
            },
        )
    return name, why


def check_model() -> None:
    """ConfigError where the package that carries the demo's model is missing."""
    try:
        next(model for model in load_catalogue() if model.name == MODEL).locate_file()
    except ModelFileError as exc:
        raise ConfigError(exc.message, exc.details) from None


@contextmanager
def demo_grid(engine: str, *, keep: bool) -> Iterator[tuple[Settings, Path]]:
    """The settings of a grid that lives as long as the block, and its folder.

    However the block ends, also by Ctrl-C or SIGTERM, every process is stopped. The folder goes too, unless
    `keep` is set or the block failed: the logs are in it then.
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
            env = {engines.ENGINE_VARIABLE: engine, "GRIDQ_DRAIN": "1"}
            stack.enter_context(GridProcesses(config, SEATS, folder=folder / "logs", env=env))
            yield config, folder
        failed = False
    except (KeyboardInterrupt, SystemExit):
        failed = False
        raise
    finally:
        if not keep and not failed:
            shutil.rmtree(folder, ignore_errors=True)
