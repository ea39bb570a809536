"""`gridq gateway` up to the moment at which it listens."""

from __future__ import annotations

import socket

import pytest
from typer.testing import CliRunner

from gridq import cli
from gridq.config.settings import settings
from tests.conftest import GridEnv

pytestmark = pytest.mark.usefixtures("grid_env", "key_hygiene")


def refused(*words: str, code: int = 2) -> str:
    """The one line that says why no gateway starts."""
    done = CliRunner().invoke(cli.app, ["gateway", *words])
    assert done.exit_code == code, done.output
    assert "Traceback" not in done.output
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    return line


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--certfile", "missing.pem"), "certificate"),
        (("--certfile", __file__), "certificate"),
        (("--keyfile", "missing.pem"), "without a certificate"),
        (("--host", "no.such.host.invalid"), "not an address"),
    ],
)
def test_a_wrong_option_is_a_one_line_error(words: tuple[str, ...], message: str) -> None:
    assert message in refused(*words)


def test_a_requested_port_is_not_replaced() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = str(holder.getsockname()[1])
        assert port in refused("--port", port)


def test_a_public_address_needs_an_api_key() -> None:
    line = refused("--host", "0.0.0.0", "--port", "0", code=6)
    assert line.startswith("error: auth.open: ")
    assert "gridq keys create" in line


def test_an_unreachable_server_is_reported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRIDQ_BROKER_URL", "redis://127.0.0.1:1/0")
    settings.cache_clear()
    assert "broker.unreachable" in refused("--port", "0")


def test_an_invalid_environment_variable_is_named(monkeypatch: pytest.MonkeyPatch, grid_env: GridEnv) -> None:
    monkeypatch.setenv("GRIDQ_GATEWAY_TRUSTED_PROXIES", "everybody")
    assert "GRIDQ_GATEWAY_TRUSTED_PROXIES" in refused("--port", "0")
