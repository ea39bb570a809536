"""Who may look at Flower: its user and its password, and the port it takes. Flower itself is not loaded."""

from __future__ import annotations

import secrets
from pathlib import Path

from gridq.config.home import write_private
from gridq.config.settings import Settings
from gridq.errors import ConfigError

USER = "gridq"

PORT = 5555
"""Flower's own port: taken where it is free and no other is asked for."""


def get_password_file(config: Settings) -> Path:
    """Where Flower's password stands: GRIDQ_FLOWER_PASSWORD_FILE, else `<home>/flower-password`."""
    return config.flower_password_file or config.home / "flower-password"


def read_password(config: Settings) -> str:
    """Flower's password. In `<home>` it is made at the first call, readable by its owner alone.

    ConfigError: the file cannot be read or written or holds no password, or others may read that in `<home>`.
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
            f"Flower's password cannot be kept in {path}",
            {
                "path": str(path),
                "reason": reason or str(exc),
                "fix": "name a file that you may read and write",
            },
        ) from None
    if own and mode & 0o077:
        raise ConfigError(
            f"Others may read Flower's password in {path}",
            {"path": str(path), "fix": f"delete it, a new one is made; or chmod 600 {path}"},
        )
    if not text or not text.isprintable() or " " in text:
        raise ConfigError(
            f"{path} holds no password",
            {
                "path": str(path),
                "expected": "one line of printable characters without a space",
                "fix": "delete it" if own else "write one",
            },
        )
    return text
