"""A machine with many seats finds all of them in the time of a probe."""

from __future__ import annotations

import time
from pathlib import Path

from tests.fakes.http_server import Handler, LocalServer
from workers.machine.probing import PROBE_TIMEOUT_SECONDS
from workers.model_apis.http.connections import Connections
from workers.profiles.llm.probe import probe

SEATS = 22


class Slow(Handler):
    """An endpoint that lists its models after most of a second."""

    def do_GET(self) -> None:
        time.sleep(0.8)
        self.answer(200, {"data": [{"id": f"gpt-5-{number}"} for number in range(50)]})


def test_22_slow_endpoints_list_their_models_in_time(tmp_path: Path) -> None:
    with LocalServer(Slow) as server:
        tables = []
        for number in range(SEATS):
            key = tmp_path / f"key-{number}"
            key.write_text(f"sk-{number}")
            seat = {"name": f"s{number}", "url": server.url, "provider": "openai", "key_file": str(key)}
            tables.append({**seat, "allow_loopback": True})
        begun = time.monotonic()
        report = probe(tables, {})
        took = time.monotonic() - begun
    assert len(report.found) == SEATS, report.missing
    assert took < PROBE_TIMEOUT_SECONDS


def test_all_connections_share_the_trusted_certificates() -> None:
    one, other = (Connections(f"https://{host}.example.com", {}, 1.0) for host in ("a", "b"))
    assert one._certificates is other._certificates
