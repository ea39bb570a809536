"""The URLs of servers and sentinels."""

from __future__ import annotations

import pytest

from gridq.config.urls import Sentinels, add_password, check_url, parse_sentinels
from gridq.errors import ConfigError


@pytest.mark.parametrize(
    "url",
    [
        "redis://h:1/0",
        "rediss://u:p@h/2?ssl_ca_certs=/ca.pem",
        "unix:///run/s.sock?db=1",
        "sentinel://h/main",
        "sentinel://u:p@h:26379,[::1]:26380/main/3?sentinel_user=s&sentinel_password=x",
        "sentinels://:p@h,h2/main?ssl_ca_certs=/ca.pem",
    ],
)
def test_valid_server_urls_are_accepted(url: str) -> None:
    check_url(url)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://h/0", "it does not begin with"),
        ("redis://h:x/0", "host or port is invalid"),
        ("redis://h/0?sentinel_password=secret", "its query has an option"),
        ("sentinel://h:26379", "not followed by the primary's name"),
        ("sentinel://h:26379/", "not followed by the primary's name"),
        ("sentinel://h/main/secret", "not followed by the primary's name"),
        ("sentinel://h,/main", "a host or a port is invalid"),
        ("sentinel://h:99999999/main", "a host or a port is invalid"),
        ("sentinel://h:0/main", "a host or a port is invalid"),
        ("sentinel://u:secret@h/main?master=m", "its query has an option"),
        ("sentinel://u:sec#ret@h/main", "it has a #"),
    ],
)
def test_an_invalid_url_is_rejected_without_showing_it(url: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        check_url(url)
    assert "sec" not in str(caught.value)


def test_a_sentinel_url_is_parsed_into_its_parts() -> None:
    found = parse_sentinels(
        "sentinels://u:p%40@a,b:2,[::1]:3/the%20one/4?sentinel_user=s&sentinel_password=t&ssl_a=b"
    )
    assert found == Sentinels(
        hosts=(("a", 26379), ("b", 2), ("::1", 3)),
        name="the one",
        db=4,
        user="u",
        password="p@",
        sentinel_user="s",
        sentinel_password="t",
        ssl={"ssl_a": "b"},
    )
    assert "p@" not in repr(found)
    assert parse_sentinels("redis://h:1/0") is None
    plain = parse_sentinels("sentinel://a/main?db=5")
    assert plain is not None
    assert (plain.db, plain.user, plain.password, plain.ssl) == (5, None, None, None)


def test_a_password_is_added_before_all_hosts() -> None:
    assert add_password("sentinel://a,b:1/main", "p/") == "sentinel://:p%2F@a,b:1/main"
