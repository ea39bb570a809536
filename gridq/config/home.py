"""The home folder (GRIDQ_HOME): what this machine knows about the grid that it belongs to.

`config.toml` holds settings of this machine; `gridq join` writes the server's address to it. `grid.json`
records what `gridq up` runs, `worker.json` what `gridq worker` runs. A record counts only while the program
that wrote it holds the lock next to it, so the record of a killed program is never mistaken for a live one.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import tomllib
from contextlib import suppress
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

CONFIG_FILE = "config.toml"
GRID_RECORD = "grid"
"""The name of `gridq up`'s record."""
WORKER_RECORD = "worker"
"""The name of `gridq worker`'s record."""
SERVER_FOLDER = "server"
"""The folder with the data of the server that `gridq up` starts."""
ACCESS_FILE = "access.json"
"""The file in that folder with the server's port and password."""

SECRET_SETTINGS = ("broker_url", "broker_password", "key")
"""Settings that only the owner of `config.toml` may read."""


def get_home_folder() -> Path:
    """Return GRIDQ_HOME without loading the settings, which may be invalid and take long to load."""
    return Path(os.environ.get("GRIDQ_HOME") or Path.home() / ".gridq")


def write_private(path: Path, text: str, *, once: bool = False) -> None:
    """Write `text` to the file `path` atomically, readable only by its owner.

    With `once`, a file that exists stays unchanged.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
            out.write(text)
        if not once:
            os.replace(draft, path)
            return
        with suppress(FileExistsError):
            os.link(draft, path)  # atomic: the first process wins
    finally:
        draft.unlink(missing_ok=True)  # also if the disk is full


def make_folder_error(path: Path, exc: OSError, what: str = "") -> ConfigError:
    """Return the error for a path that cannot be used; `what` is the message if not the usual one."""
    return ConfigError(
        what or f"Cannot use the folder {path}",
        {
            "path": str(path),
            "reason": exc.strerror or str(exc),
            "fix": "set GRIDQ_HOME to a folder that you can write to",
        },
    )


def read_config(home: Path) -> dict[str, Any]:
    """Return the settings in `config.toml`; an empty dict if there is no such file.

    Raises ConfigError if it cannot be read, is not TOML, or has a secret that other users can read.
    """
    path = home / CONFIG_FILE
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
        raise ConfigError(f"Cannot read {path}", {"path": str(path), "reason": str(reason)}) from None
    except tomllib.TOMLDecodeError as exc:
        raise ConfigError(f"{path} is not TOML", {"path": str(path), "reason": str(exc)}) from None
    if mode & 0o077 and any(name in found for name in SECRET_SETTINGS):
        raise ConfigError(
            f"Other users can read the secrets in {path}", {"path": str(path), "fix": f"chmod 600 {path}"}
        )
    return found


def read_running_record(home: Path, name: str = GRID_RECORD) -> dict[str, Any] | None:
    """Return the record `name` of the program that runs in `home`, or None if none runs."""
    if not is_locked(home, name):
        return None
    try:
        found = json.loads((home / f"{name}.json").read_text("utf-8"))
    except (OSError, ValueError):  # it has not written it yet
        return None
    return found if isinstance(found, dict) else None


def is_locked(home: Path, name: str = GRID_RECORD) -> bool:
    """Return whether a program holds the lock of the record `name`."""
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
    """Return the port of this home's own server if `gridq up` ran here and has stopped; else None."""
    if is_locked(home):
        return None
    try:
        note = json.loads((home / SERVER_FOLDER / ACCESS_FILE).read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    port = note.get("port") if isinstance(note, dict) else None
    return port if isinstance(port, int) else None
