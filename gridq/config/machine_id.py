"""This machine's identity: made once, kept in a file, so that a restart is the same machine and two machines
never share a name.
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
    """The id in `<home>/machine`, made at the first call: the host's name and four random digits.

    ConfigError: the folder cannot be written, or the file holds no id.
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
        raise make_folder_error(path, exc, f"The machine's id cannot be kept in {path}") from None
    except UnicodeDecodeError:
        text = ""
    if not _ID.fullmatch(text):
        raise ConfigError(
            f"{path} holds no machine id",
            {"path": str(path), "expected": "letters, digits, '-' and '_'", "fix": "delete it"},
        )
    return text


def get_host_id(machine: str) -> str:
    """Which start of which host `machine` runs on: a home folder copied to another host is not this one."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = socket.gethostname()
    return f"{machine}@{socket.gethostname()}:{boot}"
