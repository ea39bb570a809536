"""The local engines and the choice between them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from collections.abc import Mapping

from workers.profiles.gpu.engines.base import Engine

VARIABLE = "GRIDQ_ENGINE"
PACKAGES = {"llama_cpp": "llama-cpp-python", "xllamacpp": "xllamacpp"}
"""The engines in order of preference, each with the package that brings it."""


def make(name: str) -> Engine:
    """The engine `name`, not loaded yet; ImportError where its package is not installed."""
    if name == "llama_cpp":
        from workers.profiles.gpu.engines.llama_cpp import LlamaCppEngine

        return LlamaCppEngine()
    if name == "xllamacpp":
        from workers.profiles.gpu.engines.xllamacpp import XllamaCppEngine

        return XllamaCppEngine()
    raise ValueError(name)


def installed(name: str) -> bool:
    """Whether the engine's package is there; it is not imported."""
    return importlib.util.find_spec(name) is not None


def version(name: str) -> str:
    try:
        return importlib.metadata.version(PACKAGES[name])
    except importlib.metadata.PackageNotFoundError:
        return "of unknown version"


def choose(environ: Mapping[str, str] = os.environ) -> tuple[str | None, str]:
    """The engine to use, by GRIDQ_ENGINE or the first that is installed, and a sentence on why.

    ConfigError: GRIDQ_ENGINE names no engine, or one that is not installed.
    """
    wanted = environ.get(VARIABLE, "").strip()
    if wanted:
        if wanted not in PACKAGES or not installed(wanted):
            from gridq.errors import ConfigError

            known = wanted in PACKAGES
            raise ConfigError(
                f"The engine {wanted!r} is not installed" if known else f"{wanted!r} is no engine",
                {
                    "path": VARIABLE,
                    "expected": "one of " + ", ".join(PACKAGES),
                    "fix": f"pip install {PACKAGES[wanted]}" if known else f"use {next(iter(PACKAGES))!r}",
                },
            )
        return wanted, f"{wanted} {version(wanted)}, by {VARIABLE}"
    for name in PACKAGES:
        if installed(name):
            return name, f"{name} {version(name)}"
    return None, "No engine for models is installed: pip install xllamacpp or llama-cpp-python"
