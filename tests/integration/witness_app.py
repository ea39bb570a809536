"""A Celery app like gridq's, with one task that leaves a trace outside the server."""

from __future__ import annotations

import os
import time
from pathlib import Path

from celery import Celery

from gridq.app import Messaging, server_options
from gridq.config.settings import settings


def make() -> Celery:
    """Return a separate app with gridq's configuration."""
    made = Celery("witness", amqp=Messaging, set_as_current=False)
    made.config_from_object("broker_config.celeryconfig")
    made.conf.update(server_options(settings()), imports=())

    @made.task(name="witness.run", ignore_result=False, shared=False)
    def run(folder: str, name: str, wait: bool = False) -> str:
        """Note the start, wait for the file `go` if `wait`, note the end."""
        note(folder, f"start {name}")
        while wait and not (Path(folder) / "go").exists():
            time.sleep(0.01)
        note(folder, f"end {name}")
        return name

    return made


def note(folder: str, line: str) -> None:
    """Append `line` to the folder's witness file in one write."""
    handle = os.open(Path(folder) / "witness", os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o600)
    os.write(handle, f"{line}\n".encode())
    os.close(handle)


def notes(folder: Path) -> list[str]:
    """Return the lines noted so far."""
    file = folder / "witness"
    return file.read_text().splitlines() if file.exists() else []
