"""The options of a gateway."""

from __future__ import annotations

from pathlib import Path

import pytest

from gridq.errors import ConfigError
from gridq.gateway.options import GatewayOptions, load_options


def test_every_option_has_a_description() -> None:
    for name, field in GatewayOptions.model_fields.items():
        assert field.description, name


def test_options_come_from_the_environment_and_from_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secret").write_text("s3cret\n")
    monkeypatch.setenv("GRIDQ_GATEWAY_PORT", "9000")
    monkeypatch.setenv("GRIDQ_GATEWAY_ALLOWED_ORIGINS", "https://a.example, https://b.example")
    monkeypatch.setenv("GRIDQ_GATEWAY_WORKER_SECRET_FILE", str(tmp_path / "secret"))
    monkeypatch.setenv("GRIDQ_GATEWAY_MAX_BODY", "")
    made = load_options(host=None, keep_alive=3)
    assert (made.port, made.keep_alive, made.host, made.max_body) == (9000, 3, "127.0.0.1", None)
    assert made.allowed_origins == ("https://a.example", "https://b.example")
    assert made.worker_secret is not None
    assert made.worker_secret.get_secret_value() == "s3cret"
    assert "s3cret" not in repr(made)


def test_an_invalid_option_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRIDQ_GATEWAY_PORT", "http")
    with pytest.raises(ConfigError, match="GRIDQ_GATEWAY_PORT"):
        load_options()
