"""What stands under GRIDQ_HOME about the grid that this machine belongs to.

`config.toml` holds settings of this machine; `gridq join` writes the server's address there. `grid.json` says
what `gridq up` runs now, `worker.json` what `gridq worker` does. Such a record counts only while the program
that wrote it holds the lock beside it, so that what a killed one left is never taken for a running one.
"""

from __future__ import annotations

import fcntl
import json
import os
import tomllib
from pathlib import Path
from typing import Any

from gridq.errors import ConfigError

CONFIG = "config.toml"
GRID = "grid"
"""The name of the record of `gridq up`."""
WORKER = "worker"
"""The name of the record of `gridq worker`."""

SECRETS = ("broker_url", "broker_password", "key")
"""Settings that make `config.toml` a file for its owner alone."""


def configured(home: Path) -> dict[str, Any]:
    """The settings in `config.toml`, empty where there is none.

    ConfigError: it cannot be read, is no TOML, or holds a secret and others may read it.
    """
    path = home / CONFIG
    try:
        with path.open("rb") as file:
            found = tomllib.load(file)
            mode = os.fstat(file.fileno()).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError, RecursionError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "it is not UTF-8 text"
        if isinstance(exc, RecursionError):
            reason = "it is nested too deeply"
        raise ConfigError(f"{path} cannot be read", {"path": str(path), "reason": str(reason)}) from None
    except tomllib.TOMLDecodeError as exc:
        raise ConfigError(f"{path} is not TOML", {"path": str(path), "reason": str(exc)}) from None
    if mode & 0o077 and any(name in found for name in SECRETS):
        raise ConfigError(
            f"Others may read the secrets in {path}", {"path": str(path), "fix": f"chmod 600 {path}"}
        )
    return found


def running(home: Path, name: str = GRID) -> dict[str, Any] | None:
    """The record called `name` of a program that runs now in `home`; None where none does."""
    if not held(home, name):
        return None
    try:
        found = json.loads((home / f"{name}.json").read_text("utf-8"))
    except (OSError, ValueError):  # it is about to write it
        return None
    return found if isinstance(found, dict) else None


def held(home: Path, name: str = GRID) -> bool:
    """Whether a program holds the lock of the record `name`."""
    try:
        lock = os.open(home / f"{name}.lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False
