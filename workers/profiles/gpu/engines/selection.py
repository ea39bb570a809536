"""The choice between the local engines."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from collections.abc import Mapping

from workers.profiles.gpu.engines.base import Engine

ENGINE_VARIABLE = "GRIDQ_ENGINE"
PACKAGES = {"llama_cpp": "llama-cpp-python", "xllamacpp": "xllamacpp"}
"""The engines in order of preference, each with its package."""


def create_engine(name: str) -> Engine:
    """Return the engine `name`, without a model. Raises ImportError if its package is not installed."""
    if name == "llama_cpp":
        from workers.profiles.gpu.engines.llama_cpp import LlamaCppEngine

        return LlamaCppEngine()
    if name == "xllamacpp":
        from workers.profiles.gpu.engines.xllamacpp import XllamaCppEngine

        return XllamaCppEngine()
    raise ValueError(name)


def is_installed(name: str) -> bool:
    """Return whether the engine's package is installed, without importing it."""
    return importlib.util.find_spec(name) is not None


def read_version(name: str) -> str:
    """Return the installed version of the engine's package."""
    try:
        return importlib.metadata.version(PACKAGES[name])
    except importlib.metadata.PackageNotFoundError:
        return "of unknown version"


def choose_engine(environ: Mapping[str, str] = os.environ) -> tuple[str | None, str]:
    """Return the engine to use (GRIDQ_ENGINE, else the first installed one, else None), and a note about it.

    Raises ConfigError if GRIDQ_ENGINE names no engine, or one that is not installed.
    """
    wanted = environ.get(ENGINE_VARIABLE, "").strip()
    if wanted:
        if wanted not in PACKAGES or not is_installed(wanted):
            from gridq.errors import ConfigError

            is_known = wanted in PACKAGES
            raise ConfigError(
                f"The engine {wanted!r} is not installed" if is_known else f"Unknown engine {wanted!r}",
                {
                    "path": ENGINE_VARIABLE,
                    "expected": "one of " + ", ".join(PACKAGES),
                    "fix": f"pip install {PACKAGES[wanted]}" if is_known else f"use {next(iter(PACKAGES))!r}",
                },
            )
        return wanted, f"{wanted} {read_version(wanted)}, set by {ENGINE_VARIABLE}"
    for name in PACKAGES:
        if is_installed(name):
            return name, f"{name} {read_version(name)}"
    return None, "No engine for models is installed; run: pip install xllamacpp (or llama-cpp-python)"


def choose_concurrency(requested: int | None, engine: str | None) -> int:
    """Return how many stages a device runs at once. Raises ConfigError if the engine cannot run as many."""
    if engine is None:
        return 1
    default = create_engine(engine).default_concurrency
    if requested is not None and requested > default == 1:
        from gridq.errors import ConfigError

        raise ConfigError(
            f"The engine {engine} runs one request at a time",
            {
                "path": "gpu.concurrency",
                "expected": "1",
                "fix": "remove concurrency, or set GRIDQ_ENGINE=xllamacpp",
            },
        )
    return requested or default
