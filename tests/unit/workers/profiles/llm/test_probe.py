"""A machine with many seats finds all of them in the time of a probe."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.fakes.http_server import Handler, LocalServer
from tests.fakes.openai_server import OpenAIServer
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


@pytest.mark.parametrize("path", ["", "/", "/v1/v1", "/v1/models", "/v1/chat/completions", "/v2"])
def test_a_seat_with_a_wrong_url_learns_the_right_one(path: str) -> None:
    with OpenAIServer() as server:
        url = server.url.removesuffix("/v1")
        report = probe([{"name": "s", "url": url + path, "allow_loopback": True}], {})
    right = f"{url}/v2/v1" if path == "/v2" else f"{url}/v1"
    assert any(f'try url = "{right}"' in each for each in report.missing), report.missing


def test_a_wrong_url_is_noticed_where_the_models_are_declared() -> None:
    with OpenAIServer() as server:
        url = server.url.removesuffix("/v1")
        table = {"name": "s", "allow_loopback": True, "models": [{"name": "echo"}]}
        wrong = probe([{**table, "url": url}], {})
        assert [seat.name for seat in wrong.found] == ["s"], "it may have its models without a list"
        assert any(f'usually ends in /v1: try url = "{url}/v1"' in each for each in wrong.missing)
        assert not any("url" in each for each in probe([{**table, "url": server.url}], {}).missing)


def test_a_key_of_another_vendor_is_recognized() -> None:
    key = "sk-ant-a-secret"
    with OpenAIServer(key="another") as server:
        table = {"name": "s", "url": server.url, "key_env": "K", "allow_loopback": True}
        (said,) = [each for each in probe([table], {"K": key}).missing if "Seat" in each]
        assert 'api = "anthropic", not "openai"' in said
        assert key not in said
        (said,) = [each for each in probe([table], {"K": "sk-proj"}).missing if "Seat" in each]
        assert "api =" not in said
