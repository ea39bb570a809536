"""Wrong keys by address, and whose address it is."""

from __future__ import annotations

import pytest

from gridq.gateway.auth import failed_attempts
from gridq.gateway.auth.failed_attempts import BURST, EVERY, Attempts, address_of


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_so_many_at_once_and_then_one_each_so_often() -> None:
    clock = Clock()
    tried = Attempts(clock)
    for _ in range(BURST):
        assert tried.wait("10.0.0.1") == 0
        tried.failed("10.0.0.1")
    assert 0 < tried.wait("10.0.0.1") <= EVERY
    assert tried.wait("10.0.0.2") == 0
    clock.now += EVERY
    assert tried.wait("10.0.0.1") == 0
    tried.failed("10.0.0.1")
    assert tried.wait("10.0.0.1") > 0
    clock.now += BURST * EVERY
    for _ in range(BURST):
        assert tried.wait("10.0.0.1") == 0
        tried.failed("10.0.0.1")


def test_one_subscribers_addresses_are_one() -> None:
    tried = Attempts(Clock())
    for number in range(BURST):
        tried.failed(f"2001:db8:1:2::{number:x}")
    assert tried.wait("2001:db8:1:2:ffff::1") > 0
    assert tried.wait("2001:db8:1:3::1") == 0


def test_an_ipv4_address_written_as_ipv6_is_that_alone() -> None:
    tried = Attempts(Clock())
    for _ in range(BURST):
        tried.failed("::ffff:1.2.3.4")
    assert tried.wait("1.2.3.4") > 0
    assert tried.wait("::ffff:1.2.3.5") == 0


def test_only_so_many_addresses_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failed_attempts, "MOST", 8)
    tried = Attempts(Clock())
    for number in range(100):
        tried.failed(f"10.0.0.{number}")
    assert len(tried._full_at) == 8


@pytest.mark.parametrize(
    ("peer", "forwarded", "proxies", "address"),
    [
        ("9.9.9.9", ["1.2.3.4"], (), "9.9.9.9"),
        ("9.9.9.9", ["1.2.3.4"], ("10.0.0.0/8",), "9.9.9.9"),
        ("10.0.0.1", ["1.2.3.4"], ("10.0.0.0/8",), "1.2.3.4"),
        ("10.0.0.1", ["6.6.6.6, 1.2.3.4"], ("10.0.0.0/8",), "1.2.3.4"),
        ("10.0.0.1", ["6.6.6.6", "1.2.3.4, 10.0.0.7"], ("10.0.0.0/8",), "1.2.3.4"),
        ("10.0.0.1", [], ("10.0.0.1",), "10.0.0.1"),
        ("10.0.0.1", ["nonsense"], ("10.0.0.1",), "nonsense"),
        ("::1", ["1.2.3.4"], ("127.0.0.1", "::1"), "1.2.3.4"),
        ("", ["1.2.3.4"], ("127.0.0.1",), ""),
    ],
)
def test_whose_address(peer: str, forwarded: list[str], proxies: tuple[str, ...], address: str) -> None:
    assert address_of(peer, forwarded, proxies) == address
