"""The control socket by which `gridq status` queries a running `gridq up` or `gridq worker`.

It is a socket in the home folder that only its owner can use. Every connection gets one JSON object.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ANSWER_TIMEOUT_SECONDS = 3.0
"""Time limit of an answer."""


class ControlServer:
    """Sends `answer()` to every connection of the socket `<home>/<name>.sock`, until `close`."""

    def __init__(self, home: Path, name: str, answer: Callable[[], dict[str, Any]]) -> None:
        self._path = home / f"{name}.sock"
        self._answer = answer
        self._path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX)
        with _within(home):
            before = os.umask(0o177)
            try:
                self._socket.bind(self._path.name)
            finally:
                os.umask(before)
        self._socket.listen(8)
        threading.Thread(target=self._serve, name="control", daemon=True).start()

    def close(self) -> None:
        self._path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                asker, _ = self._socket.accept()
            except OSError:  # closed
                return
            with asker, contextlib.suppress(OSError):
                asker.settimeout(ANSWER_TIMEOUT_SECONDS)
                asker.sendall(json.dumps(self._answer()).encode())


def query(home: Path, name: str) -> dict[str, Any] | None:
    """Return the answer of the program `name` of this home; None: it does not run, or not answer in time."""
    parts = []
    with socket.socket(socket.AF_UNIX) as asker:
        asker.settimeout(ANSWER_TIMEOUT_SECONDS)
        try:
            with _within(home):
                asker.connect(f"{name}.sock")
            while piece := asker.recv(1 << 16):
                parts.append(piece)
        except OSError:
            return None
    try:
        found = json.loads(b"".join(parts))
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


@contextlib.contextmanager
def _within(folder: Path) -> Iterator[None]:
    """Work in `folder`, so that the socket's name is short: a socket's path is limited to 107 bytes."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
