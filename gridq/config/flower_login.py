"""The login and the port of Flower. This module does not load Flower itself."""

from __future__ import annotations

import secrets
from pathlib import Path

from gridq.config.home import write_private
from gridq.config.settings import Settings
from gridq.errors import ConfigError

USER = "gridq"

PORT = 5555
"""Flower's default port; used if it is free and no other port is given."""


def get_password_file(config: Settings) -> Path:
    """Return GRIDQ_FLOWER_PASSWORD_FILE, or else `<home>/flower-password`."""
    return config.flower_password_file or config.home / "flower-password"


def read_password(config: Settings) -> str:
    """Return Flower's password. In the home folder, the first call creates it, readable only by its owner.

    Raises ConfigError if the file cannot be read or written, has no password, or is in the home folder and
    other users may read it.
    """
    path = get_password_file(config)
    own = config.flower_password_file is None
    try:
        if own and not path.exists():
            config.home.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_private(path, secrets.token_urlsafe(24) + "\n", once=True)
        mode = path.stat().st_mode
        text = path.read_text("ascii").strip()
    except (OSError, ValueError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "it is not ASCII text"
        raise ConfigError(
            f"Cannot read or create Flower's password in {path}",
            {
                "path": str(path),
                "reason": reason or str(exc),
                "fix": "use a file that you can read and write",
            },
        ) from None
    if own and mode & 0o077:
        raise ConfigError(
            f"Other users can read Flower's password in {path}",
            {"path": str(path), "fix": f"chmod 600 {path}, or delete it to get a new password"},
        )
    if not text or not text.isprintable() or " " in text:
        raise ConfigError(
            f"{path} has no password",
            {
                "path": str(path),
                "expected": "one line of printable characters without spaces",
                "fix": "delete the file" if own else "write a password to it",
            },
        )
    return text
