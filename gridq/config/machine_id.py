"""The id of this machine, created once and kept in a file.

A restart keeps the id, and two machines never share one.
"""

from __future__ import annotations

import re
import secrets
import socket
from pathlib import Path

from gridq.config.home import make_folder_error, write_private
from gridq.errors import ConfigError

_ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")


def get_machine_id(home: Path) -> str:
    """Return the id in `<home>/machine`; the first call creates it from the host name and four random digits.

    Raises ConfigError if the folder cannot be written, or the file has no valid id.
    """
    path = home / "machine"
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            host = (
                re.sub(r"[^a-z0-9]+", "-", socket.gethostname().split(".")[0].lower()).strip("-")[:40]
                or "machine"
            )
            write_private(path, f"{host}-{secrets.token_hex(2)}\n", once=True)
        text = path.read_text().strip()
    except OSError as exc:
        raise make_folder_error(path, exc, f"Cannot read or create the machine id in {path}") from None
    except UnicodeDecodeError:
        text = ""
    if not _ID.fullmatch(text):
        raise ConfigError(
            f"{path} has no valid machine id",
            {
                "path": str(path),
                "expected": "lower-case letters, digits, '-' and '_'",
                "fix": "delete the file",
            },
        )
    return text


def get_host_id(machine: str) -> str:
    """Return an id of the host and its boot.

    It tells a home folder that was copied to another host from the original.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = socket.gethostname()
    return f"{machine}@{socket.gethostname()}:{boot}"
