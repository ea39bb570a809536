"""The server's URL: `redis://`, `rediss://` and `unix://` name the server itself, `sentinel://` and `sentinels://`
(with TLS) the sentinels that know which of its servers is the primary now.

`sentinel://[user:password@]host[:port][,host[:port]…]/primary-name[/database][?options]`: the login is the
servers'; the sentinels' own, where they have one, stands in `sentinel_user` and `sentinel_password`.

The URL of a gateway is `http://host:port` or `https://host`.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from gridq.errors import ConfigError

SENTINELS = ("sentinel", "sentinels")
SCHEMES = ("redis", "rediss", "unix", *SENTINELS)
SENTINEL_PORT = 26379
GATEWAYS = ("http", "https")
SENTINEL_OPTIONS = ("sentinel_user", "sentinel_password")


@dataclass(frozen=True, slots=True)
class Sentinels:
    """What a URL says of sentinels: where they are, the name of the primary that they watch, and how to log
    in at its servers and at themselves. `ssl` holds the ssl_… options, None without TLS.
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
    """The sentinels that `url` names; None where it names a server. ValueError: a host or port is none.

    >>> sentinels("sentinel://:p@a,b:26380/main/2").hosts
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
    """`url` with `password` for its login; unchanged where it holds a password already, or is no URL."""
    scheme, found, rest = url.partition("://")
    place = re.match(r"[^/?#]*", rest)
    login, at, _ = (place.group() if place else "").rpartition("@")
    if not found or ":" in login:
        return url
    return f"{scheme}://{login}:{quote(password, safe='')}@{rest[len(login + at) :]}"


def check_url(url: str, source: str = "GRIDQ_BROKER_URL") -> None:
    """ConfigError where `url` is not that of a server; `source` says where it stands. It never shows the URL:
    a password may stand in it, and where the URL is malformed nobody can tell where.
    """
    reason = _find_server_fault(url)
    if reason:
        raise ConfigError(
            "This is not the URL of a server",
            {
                "path": source,
                "reason": reason,
                "expected": "redis://:password@host:port/0, rediss://…, unix:///path/of/socket or "
                "sentinel://:password@host:26379,host:26379/name-of-the-primary",
                "fix": "correct it; in a password, / ? # @ and : are written %2F %3F %23 %40 and %3A",
            },
        )


def is_gateway(url: str) -> bool:
    """Whether `url` leads to gateways, not to a server.

    >>> is_gateway("https://grid.example"), is_gateway("rediss://h/0")
    (True, False)
    """
    return url.lower().startswith(tuple(f"{scheme}://" for scheme in GATEWAYS))


def parse_gateways(url: str, source: str = "GRIDQ_URL") -> tuple[str, ...]:
    """The gateways that `url` names, separated by commas, each without a / at its end. ConfigError: one of
    them is none; `source` says where it stands.

    >>> gateways("http://a:8080/, https://b/grid")
    ('http://a:8080', 'https://b/grid')
    """
    found = tuple(dict.fromkeys(re.sub(r"(?<![:/])/+$", "", each.strip()) for each in url.split(",")))
    for each in found:
        reason = _find_gateway_fault(each)
        if reason:
            raise ConfigError(
                "This is not the URL of a gateway",
                {
                    "path": source,
                    "reason": reason,
                    "expected": "http://host:port or https://host, or several of them, separated by commas",
                    "fix": "correct it; a server's URL belongs into GRIDQ_BROKER_URL, the key into GRIDQ_KEY",
                },
            )
    return found


def _find_gateway_fault(url: str) -> str:
    """As `_fault`, of a gateway's URL."""
    if not is_gateway(url):
        return "it does not begin with http:// or https://"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "its host or its port cannot be read"
    if not parts.hostname or port == 0 or re.search(r"[\s\x00-\x1f]", url):
        return "its host or its port cannot be read"
    if "@" in parts.netloc:
        return "a login stands in it"
    return "it has a ? or a #" if "?" in url or "#" in url else ""


def _find_server_fault(url: str) -> str:
    """What is wrong with a server's URL, in words that hold nothing of it; empty where nothing is."""
    if not url.startswith(tuple(f"{scheme}://" for scheme in SCHEMES)):
        return "it does not begin with " + ", ".join(f"{scheme}://" for scheme in SCHEMES)
    if "#" in url:
        return "it holds a #"
    query = url.partition("?")[2]
    if url.startswith(tuple(f"{scheme}://" for scheme in SENTINELS)):
        return _find_sentinels_fault(url) or _find_query_fault(query, SENTINEL_OPTIONS)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "its host or its port cannot be read"
    if parts.scheme == "unix":
        if not parts.path:
            return "it names no socket"
    elif port == 0:
        return "its port is 0"
    elif not re.fullmatch(r"/?|/[0-9]+/?", parts.path):
        return "what follows the host and the port is not the number of a database"
    return _find_query_fault(query)


def _find_sentinels_fault(url: str) -> str:
    if not re.fullmatch(r"[^?]*://[^/?]+/[^/?]+(/[0-9]*)?(\?.*)?", url):
        return "after its hosts there is no name of a primary, with or without the number of a database"
    try:
        parse_sentinels(url)
    except ValueError:
        return "a host or a port of it cannot be read"
    return ""


def _find_query_fault(query: str, more: tuple[str, ...] = ()) -> str:
    for name, value in parse_qsl(query, keep_blank_values=True):
        if not (value.isdecimal() if name == "db" else name.startswith("ssl_") or name in more):
            return "what follows its ? is neither " + ", ".join(("db=<number>", *more)) + " nor ssl_…"
    return ""


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches `address`; a name other than localhost counts as reachable."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"
