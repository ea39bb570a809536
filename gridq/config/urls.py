"""URLs of servers and gateways.

`redis://`, `rediss://` and `unix://` name a server. `sentinel://` and `sentinels://` (with TLS) name
sentinels, which know the server that is the primary:
`sentinel://[user:password@]host[:port][,host[:port]…]/primary-name[/database][?options]`. This login is for
the servers; the options `sentinel_user` and `sentinel_password` are the login for the sentinels.

The URL of a gateway is `http://host:port` or `https://host`.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from functools import lru_cache
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from gridq.errors import ConfigError

SENTINELS = ("sentinel", "sentinels")
SCHEMES = ("redis", "rediss", "unix", *SENTINELS)
SENTINEL_PORT = 26379
GATEWAYS = ("http", "https")
SENTINEL_OPTIONS = ("sentinel_user", "sentinel_password")


@dataclass(frozen=True, slots=True)
class Sentinels:
    """The parts of a sentinel URL: hosts, the name of the primary, and both logins.

    `ssl` holds the ssl_… options; it is None without TLS.
    """

    hosts: tuple[tuple[str, int], ...]
    name: str
    db: int
    user: str | None
    password: str | None = field(repr=False)
    sentinel_user: str | None
    sentinel_password: str | None = field(repr=False)
    ssl: dict[str, str] | None


def parse_sentinels(url: str) -> Sentinels | None:
    """Return the sentinels in `url`, or None if it names a server.

    Raises ValueError for an invalid host or port.

    >>> parse_sentinels("sentinel://:p@a,b:26380/main/2").hosts
    (('a', 26379), ('b', 26380))
    """
    scheme, _, rest = url.partition("://")
    if scheme not in SENTINELS:
        return None
    place, _, query = rest.partition("?")
    place, _, path = place.partition("/")
    login, _, hosts = place.rpartition("@")
    user, _, password = login.partition(":")
    name, _, db = path.partition("/")
    options = dict(parse_qsl(query))
    secure = {key: value for key, value in options.items() if key.startswith("ssl_")}
    return Sentinels(
        hosts=tuple(_parse_host(each) for each in hosts.split(",")),
        name=unquote(name),
        db=int(options.get("db") or db.strip("/") or 0),
        user=unquote(user) or None,
        password=unquote(password) or None,
        sentinel_user=options.get("sentinel_user"),
        sentinel_password=options.get("sentinel_password"),
        ssl=secure if scheme == "sentinels" else None,
    )


def _parse_host(text: str) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    if not parts.hostname or parts.path or parts.port == 0:
        raise ValueError("no host")
    return parts.hostname, SENTINEL_PORT if parts.port is None else parts.port


def add_password(url: str, password: str) -> str:
    """Return `url` with `password` added to its login; unchanged if it has a password, or is not a URL."""
    scheme, found, rest = url.partition("://")
    place = re.match(r"[^/?#]*", rest)
    login, at, _ = (place.group() if place else "").rpartition("@")
    if not found or ":" in login:
        return url
    return f"{scheme}://{login}:{quote(password, safe='')}@{rest[len(login + at) :]}"


def check_url(url: str, source: str = "GRIDQ_BROKER_URL") -> None:
    """Raise ConfigError if `url` is not a server's URL; `source` names the setting.

    The error never shows the URL, because it may have a password, whose place is unknown in a malformed URL.
    """
    reason = _find_server_fault(url)
    if reason:
        raise ConfigError(
            "The server's URL is invalid",
            {
                "path": source,
                "reason": reason,
                "expected": "redis://:password@host:port/0, rediss://…, unix:///path/of/socket or "
                "sentinel://:password@host:26379,host:26379/name-of-the-primary",
                "fix": "correct it; in a password, write / ? # @ : as %2F %3F %23 %40 %3A",
            },
        )


def is_gateway(url: str) -> bool:
    """Return whether `url` is a gateway's URL and not a server's.

    >>> is_gateway("https://grid.example"), is_gateway("rediss://h/0")
    (True, False)
    """
    return url.lower().startswith(tuple(f"{scheme}://" for scheme in GATEWAYS))


def parse_gateways(url: str, source: str = "GRIDQ_URL") -> tuple[str, ...]:
    """Return the gateways in `url`, which are separated by commas, each without a final slash.

    Raises ConfigError, with the setting `source`, if one of them is invalid.

    >>> parse_gateways("http://a:8080/, https://b/grid")
    ('http://a:8080', 'https://b/grid')
    """
    found = tuple(dict.fromkeys(re.sub(r"(?<![:/])/+$", "", each.strip()) for each in url.split(",")))
    for each in found:
        reason = _find_gateway_fault(each)
        if reason:
            raise ConfigError(
                "The gateway's URL is invalid",
                {
                    "path": source,
                    "reason": reason,
                    "expected": "http://host:port or https://host, or several separated by commas",
                    "fix": "correct it; set a server's URL in GRIDQ_BROKER_URL, and the key in GRIDQ_KEY",
                },
            )
    return found


def _find_gateway_fault(url: str) -> str:
    """Return what is wrong with a gateway's URL, without quoting it; empty if nothing is."""
    if not is_gateway(url):
        return "it does not begin with http:// or https://"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "its host or port is invalid"
    if not parts.hostname or port == 0 or re.search(r"[\s\x00-\x1f]", url):
        return "its host or port is invalid"
    if "@" in parts.netloc:
        return "it has a login"
    return "it has a ? or a #" if "?" in url or "#" in url else ""


def _find_server_fault(url: str) -> str:
    """Return what is wrong with a server's URL, without quoting it; empty if nothing is."""
    if not url.startswith(tuple(f"{scheme}://" for scheme in SCHEMES)):
        return "it does not begin with " + ", ".join(f"{scheme}://" for scheme in SCHEMES)
    if "#" in url:
        return "it has a #"
    query = url.partition("?")[2]
    if url.startswith(tuple(f"{scheme}://" for scheme in SENTINELS)):
        return _find_sentinels_fault(url) or _find_query_fault(query, SENTINEL_OPTIONS)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "its host or port is invalid"
    if parts.scheme == "unix":
        if not parts.path:
            return "it has no path of a socket"
    elif port == 0:
        return "its port is 0"
    elif not re.fullmatch(r"/?|/[0-9]+/?", parts.path):
        return "the part after host and port is not a database number"
    return _find_query_fault(query)


def _find_sentinels_fault(url: str) -> str:
    if not re.fullmatch(r"[^?]*://[^/?]+/[^/?]+(/[0-9]*)?(\?.*)?", url):
        return "the hosts are not followed by the primary's name, with or without a database number"
    try:
        parse_sentinels(url)
    except ValueError:
        return "a host or a port is invalid"
    return ""


def _find_query_fault(query: str, more: tuple[str, ...] = ()) -> str:
    for name, value in parse_qsl(query, keep_blank_values=True):
        if not (value.isdecimal() if name == "db" else name.startswith("ssl_") or name in more):
            return "its query has an option other than " + ", ".join(("db=<number>", *more)) + " and ssl_…"
    return ""


@lru_cache(maxsize=64)
def is_loopback(address: str) -> bool:
    """Return whether only this machine can reach `address`; a name other than localhost counts as public."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
