"""A process that is told to end does so, whatever hangs in it."""

from __future__ import annotations

import subprocess
import sys

import pytest

HANGS = """
import sys, threading, time
from types import SimpleNamespace
from gridq.execution import shutdown
from gridq.execution.shutdown import Shutdown
from gridq.store.connection import connect
shutdown.SERVER_SECONDS = 0.1
shutdown.EXIT_GRACE_SECONDS = 0.3
hang = threading.Event().wait
session = SimpleNamespace(
    busy=1, drain=hang, stop=lambda within=None: hang(),
    config=SimpleNamespace(drain=0 if sys.argv[1] == "first" else 300),
    scripts=SimpleNamespace(client=connect("redis://127.0.0.1:1/0")),
)
end = Shutdown(session)
end.handle_signal()
if sys.argv[1] != "first":
    end.handle_signal()
time.sleep(60)
print("it lives", flush=True)
"""


@pytest.mark.parametrize("signals", ["first", "both"])
def test_shutdown_does_not_wait_longer_for_a_hanging_server_than_configured(signals: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", HANGS, signals], capture_output=True, text=True, timeout=100, check=False
    )
    assert (ended.returncode, ended.stdout) == (1, "")
