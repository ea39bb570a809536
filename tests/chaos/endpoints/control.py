"""Control the endpoints' process: start it, change the mode of an endpoint, stop it."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tests.chaos.endpoints.server import HEALTHY, HOST
from tests.fakes.vendor_apis import ProtocolModel

STOP_SECONDS = 10.0
CHECKOUT = Path(__file__).parents[3]


@dataclass
class Span:
    """The time in which an endpoint had a mode, by the monotonic clock."""

    endpoint: str
    mode: str
    how: str
    begun: float
    ended: float = math.inf


class EndpointProcess:
    """Endpoints as one process outside the grid. `apis`: their API formats by name. `file`: their witness's
    file. `seconds`: the time that a healthy answer takes.

    Use it with `with`, or call `start` and `stop`. It ends with this process.
    """

    def __init__(self, file: Path, apis: Mapping[str, ProtocolModel], seconds: float = 0.0) -> None:
        self.file = file
        self.apis = dict(apis)
        self.seconds = seconds
        self._ports: dict[str, int] = {}
        self._changes: dict[str, int] = dict.fromkeys(apis, 0)
        self._child: subprocess.Popen[str] | None = None
        self.spans: list[Span] = []
        """The modes that were set, in order."""

    def start(self) -> Self:
        """Start the process; all endpoints are healthy."""
        self._child = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.chaos.endpoints.server"),
                *(str(self.file), json.dumps(self.apis), str(self.seconds)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=CHECKOUT,
            start_new_session=True,  # a Ctrl-C is for the run, which stops it
        )
        self._ports = self._read()
        return self

    def stop(self) -> None:
        """Stop the process. It may be called twice."""
        child, self._child = self._child, None
        if child is None:
            return
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.close()
        try:
            child.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        child.stdout.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def get_url(self, name: str) -> str:
        """Return the base URL of an endpoint."""
        return f"http://{HOST}:{self._ports[name]}/v1"

    def set_mode(self, name: str, mode: str, how: str = "") -> int:
        """Change an endpoint's mode (`server.MODES`), and return once it is in effect. Return the number of
        the change, for `restore`.
        """
        assert self._child is not None
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps({"endpoint": name, "mode": mode, "how": how}) + "\n")
        self._child.stdin.flush()
        self._read()
        now = time.monotonic()
        for span in reversed(self.spans):
            if span.endpoint == name:
                span.ended = now
                break
        self.spans.append(Span(name, mode, how, now))
        self._changes[name] += 1
        return self._changes[name]

    def restore(self, name: str, change: int) -> bool:
        """Make an endpoint healthy unless its mode was changed after `change`. Return whether it did."""
        if self._changes[name] != change:
            return False
        self.set_mode(name, HEALTHY)
        return True

    def _read(self) -> Any:
        assert self._child is not None
        assert self._child.stdout is not None
        line = self._child.stdout.readline()
        if not line:
            raise RuntimeError("the endpoints' process has ended")
        return json.loads(line)
