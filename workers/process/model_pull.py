"""The process that pulls a model for a seat: `python -m workers.process.model_pull`.

It reads one line of JSON from stdin: `{"reference", "home", "options"}`, the last as `PullOptions` has it.
Its progress and its end stand in the record of the pull. It ends with its worker; what it downloaded is
used by the next pull.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

from gridq.config.settings import settings
from gridq.errors import GridError
from workers.machine.mirror_registry import find_mirrors
from workers.profiles.gpu.model_files.pulling import PullOptions, pull
from workers.profiles.gpu.model_files.references import parse_reference


def main() -> None:
    """Pull the model that stdin names. Exits with 1 if that fails."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    order = json.loads(sys.stdin.buffer.readline() or b"null")
    if order is None:
        return
    threading.Thread(target=_end_with_parent, daemon=True).start()
    stated: dict[str, Any] = order["options"]
    options: dict[str, Any] = {
        name: tuple(each) if isinstance(each, list) else each for name, each in stated.items()
    }
    with contextlib.suppress(KeyboardInterrupt):
        try:
            pull(
                parse_reference(order["reference"]),
                Path(order["home"]),
                PullOptions(**options),
                find_mirrors=partial(find_mirrors, settings()),
            )
        except GridError:
            sys.exit(1)  # the record has the error


def _end_with_parent() -> None:
    """End this process when the worker closes the pipe, or dies."""
    while os.read(sys.stdin.fileno(), 1024):  # not its buffer, whose lock aborts Python's exit
        pass
    signal.raise_signal(signal.SIGTERM)


if __name__ == "__main__":
    main()
