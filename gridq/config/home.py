"""What stands under GRIDQ_HOME about the grid that this machine belongs to.

`config.toml` holds settings of this machine; `gridq join` writes the server's address there. `grid.json` says
what `gridq up` runs now, `worker.json` what `gridq worker` does. Such a record counts only while the program
that wrote it holds the lock beside it, so that what a killed one left is never taken for a running one.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import tomllib
from pathlib import Path
from typing import Any

from gridq.errors import ConfigError

# Everything but the help texts imports this module, and it is the first that needs POSIX.
if sys.platform == "win32":
    raise ConfigError(
        "gridq does not run on Windows",
        {
            "reason": "it needs Linux or macOS",
            "fix": "install it in WSL 2: https://learn.microsoft.com/windows/wsl/install",
        },
    )

import fcntl

CONFIG = "config.toml"
GRID = "grid"
"""The name of the record of `gridq up`."""
WORKER = "worker"
"""The name of the record of `gridq worker`."""
SERVER = "server"
"""The folder of the data of the server that `gridq up` brings along."""
ACCESS = "access.json"
"""The file in it of that server's port and password."""

SECRETS = ("broker_url", "broker_password", "key")
"""Settings that make `config.toml` a file for its owner alone."""


def get_home_folder() -> Path:
    """GRIDQ_HOME, without the other settings: those may be at fault, and their library takes long to load."""
    return Path(os.environ.get("GRIDQ_HOME") or Path.home() / ".gridq")


def write_private(path: Path, text: str, *, once: bool = False) -> None:
    """Put `text` into the file `path` at one instant, readable by its owner alone. With `once` a file that is
    there stays as it is, whoever wrote it.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
        out.write(text)
    if not once:
        os.replace(draft, path)
        return
    try:
        os.link(draft, path)  # atomic, and whoever comes first wins
    except FileExistsError:
        pass
    finally:
        draft.unlink()


def make_folder_error(path: Path, exc: OSError, what: str = "") -> ConfigError:
    """The error of a home folder that cannot be used: `what` cannot be done with `path`."""
    return ConfigError(
        what or f"The folder {path} cannot be used",
        {
            "path": str(path),
            "reason": exc.strerror or str(exc),
            "fix": "set GRIDQ_HOME to a folder you may write",
        },
    )


def read_config(home: Path) -> dict[str, Any]:
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


def read_running_record(home: Path, name: str = GRID) -> dict[str, Any] | None:
    """The record called `name` of a program that runs now in `home`; None where none does."""
    if not is_locked(home, name):
        return None
    try:
        found = json.loads((home / f"{name}.json").read_text("utf-8"))
    except (OSError, ValueError):  # it is about to write it
        return None
    return found if isinstance(found, dict) else None


def is_locked(home: Path, name: str = GRID) -> bool:
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


def find_stopped_port(home: Path) -> int | None:
    """The port that the server of this home's own grid had, where `gridq up` has run here and does no more;
    None where none ever did, or one runs or starts.
    """
    if is_locked(home):
        return None
    try:
        note = json.loads((home / SERVER / ACCESS).read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    port = note.get("port") if isinstance(note, dict) else None
    return port if isinstance(port, int) else None
