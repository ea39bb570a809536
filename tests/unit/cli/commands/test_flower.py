"""`gridq flower` up to the moment at which Flower runs."""

from __future__ import annotations

import socket

import pytest

from gridq.cli.commands import flower
from gridq.config import flower_login
from gridq.config.urls import is_loopback
from gridq.errors import ConfigError


@pytest.mark.parametrize(
    ("url", "path"),
    [
        (None, ""),
        ("https://grid.example.com", ""),
        ("https://grid.example.com/", ""),
        ("http://h:8/a/b/", "a/b"),
    ],
)
def test_the_url_path_is_taken_from_the_public_url(url: str | None, path: str) -> None:
    assert flower._get_url_path(url) == path


@pytest.mark.parametrize(
    "url", ["grid.example.com", "ftp://h/", "https://", "https://h/?a=1", "https://h/#x"]
)
def test_a_public_url_that_is_not_a_page_is_rejected(url: str) -> None:
    with pytest.raises(ConfigError, match="--public-url"):
        flower._get_url_path(url)


@pytest.mark.parametrize(
    ("address", "loopback"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("localhost", True), ("0.0.0.0", False),
     ("::", False), ("192.168.1.4", False), ("grid.example.com", False)],
)  # fmt: skip
def test_loopback_addresses_are_recognized(address: str, loopback: bool) -> None:
    assert is_loopback(address) is loopback


def test_a_taken_port_is_replaced_by_a_free_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        monkeypatch.setattr(flower_login, "PORT", taken.getsockname()[1])
        assert flower._choose_port("127.0.0.1") == 0
    assert flower._choose_port("127.0.0.1") == flower_login.PORT
