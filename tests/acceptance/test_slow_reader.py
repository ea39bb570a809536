"""A client that does not read for a while: the gateway's memory is bounded, and nothing is lost."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.acceptance.test_gateway_process import started
from tests.conftest import GridEnv
from tests.pieces import emit as emit_pieces
from tests.unit.store.plans import Grid, one
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("key_hygiene")]

PIECES = [f"{number:05} {'x' * 2_000}" for number in range(9000)]
MAX_GROWTH_BYTES = 16 * 1024 * 1024
"""The growth of the gateway's memory with two readers of 18 MB. It was 4 MB with bounded buffers, 50 MB
without.
"""


def peak(program: subprocess.Popen[str]) -> int:
    """Return the peak memory of the process in bytes."""
    status = Path(f"/proc/{program.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def pieces(stream: str) -> list[str]:
    """Return the pieces in a stream of events."""
    datas = [line.removeprefix("data: ") for line in stream.splitlines() if line.startswith("data: ")]
    return [data["piece"] for data in map(json.loads, datas) if "piece" in data]


def emit(grid: Grid, lease: str, values: list[str]) -> None:
    for at in range(0, len(values), 100):
        assert emit_pieces(
            grid.scripts, lease, "root", [json.dumps(piece) for piece in values[at : at + 100]], at
        )


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="a process's memory is read from /proc")
def test_unread_events_do_not_grow_the_gateway(grid_env: GridEnv, tmp_path: Path) -> None:
    grid = Grid(grid_env.client, grid_env.settings)
    grid.seat()
    with started(grid_env, tmp_path, "--port", "0", "--json") as (program, out):
        url = json.loads(wait_for(out.read_text))["url"]
        warm = grid.job(one(), "warm", stream=True)
        emit(grid, grid.take().lease, PIECES[:10])
        grid.scripts.stop(warm, "cancelled", "{}")
        assert len(pieces(httpx.get(f"{url}/jobs/{warm}/events", trust_env=False).text)) == 10
        before = peak(program)
        grid.job(one(), "long", stream=True)
        claim = grid.take()
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.settimeout(60)
            place = urlsplit(url)
            sock.connect((place.hostname, place.port))
            with closing(http.client.HTTPConnection(place.netloc)) as client:
                client.sock = sock
                client.request("GET", "/jobs/long/events")
                slow = client.getresponse()
                emit(grid, claim.lease, PIECES)
                grid.done(claim)
                # A quick reader is not delayed; after it, all data has gone through the gateway.
                quick = httpx.get(f"{url}/jobs/long/events", trust_env=False, timeout=60).text
                assert pieces(quick) == PIECES
                assert pieces(slow.read().decode()) == PIECES
        assert peak(program) - before < MAX_GROWTH_BYTES
