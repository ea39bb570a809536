"""Wrong keys by address, and whose address it is."""

from __future__ import annotations

import pytest

from gridq.gateway.auth import failed_attempts
from gridq.gateway.auth.failed_attempts import BURST, REFILL_SECONDS, FailedAttempts, resolve_address


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_after_a_burst_attempts_are_allowed_one_at_a_time() -> None:
    clock = Clock()
    tried = FailedAttempts(clock)
    for _ in range(BURST):
        assert tried.retry_after("10.0.0.1") == 0
        tried.record("10.0.0.1")
    assert 0 < tried.retry_after("10.0.0.1") <= REFILL_SECONDS
    assert tried.retry_after("10.0.0.2") == 0
    clock.now += REFILL_SECONDS
    assert tried.retry_after("10.0.0.1") == 0
    tried.record("10.0.0.1")
    assert tried.retry_after("10.0.0.1") > 0
    clock.now += BURST * REFILL_SECONDS
    for _ in range(BURST):
        assert tried.retry_after("10.0.0.1") == 0
        tried.record("10.0.0.1")


def test_one_ipv6_network_is_one_address() -> None:
    tried = FailedAttempts(Clock())
    for number in range(BURST):
        tried.record(f"2001:db8:1:2::{number:x}")
    assert tried.retry_after("2001:db8:1:2:ffff::1") > 0
    assert tried.retry_after("2001:db8:1:3::1") == 0


def test_an_ipv4_address_mapped_to_ipv6_is_its_own() -> None:
    tried = FailedAttempts(Clock())
    for _ in range(BURST):
        tried.record("::ffff:1.2.3.4")
    assert tried.retry_after("1.2.3.4") > 0
    assert tried.retry_after("::ffff:1.2.3.5") == 0


def test_the_number_of_addresses_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failed_attempts, "MAX_ADDRESSES", 8)
    tried = FailedAttempts(Clock())
    for number in range(100):
        tried.record(f"10.0.0.{number}")
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
def test_the_client_address_is_taken_from_trusted_proxies(
    peer: str, forwarded: list[str], proxies: tuple[str, ...], address: str
) -> None:
    assert resolve_address(peer, forwarded, proxies) == address
