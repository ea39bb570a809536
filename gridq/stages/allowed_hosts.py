"""Which hosts a stage may ask: those of `GRIDQ_HTTP_ALLOW`, and no other, however it gets there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gridq.config.settings import settings
from gridq.errors import HostNotAllowed
from gridq.protocol.models import Json
from gridq.stages.pure.bounds import describe_kind, make_input_error

if TYPE_CHECKING:
    import httpx

PORTS = {"http": 80, "https": 443}


def parse_url(text: Json) -> httpx.URL:
    """`text` as an absolute http or https URL; StageError where it is none."""
    import httpx

    if not isinstance(text, str):
        raise make_input_error(
            f"A URL must be a text, not {describe_kind(text)}", "a URL such as https://example.com/a"
        )
    try:
        url = httpx.URL(text)
        port = url.port
    except (httpx.InvalidURL, ValueError, UnicodeError) as exc:
        raise make_input_error(
            f"The URL cannot be read: {exc}", "a URL such as https://example.com/a"
        ) from None
    # A character that no host may hold stands %-escaped in it.
    if url.scheme not in PORTS or not url.host or "%" in url.host or not 0 < (port or 80) < 65536:
        raise make_input_error(
            f"The URL has the scheme {url.scheme!r}, the host {url.host!r} and the port {port}",
            "an http or https URL with a host",
        )
    return url


def redact_url(url: httpx.URL) -> str:
    """`url` for messages: without its login, query and fragment, which may hold secrets."""
    return f"{url.scheme}://{_get_host(url)}{f':{url.port}' if url.port else ''}{url.path}"


def get_origin(url: httpx.URL) -> tuple[str, str, int]:
    """Scheme, host and port of `url`."""
    return url.scheme, _get_host(url), url.port or PORTS[url.scheme]


def check_allowed(url: httpx.URL) -> None:
    """HostNotAllowed where no entry of the allow-list names the host of `url` (and its port, if stated)."""
    _, host, port = get_origin(url)
    for entry in settings().http_allow:
        name, entry_port = _parse_entry(entry)
        if name == host and entry_port in (None, port):
            return
    raise HostNotAllowed(
        f"The host {host!r}, port {port}, is not allowed here",
        {
            "expected": "one of " + ", ".join(settings().http_allow)
            if settings().http_allow
            else "no host: none is allowed",
            "fix": f"add {host} to GRIDQ_HTTP_ALLOW on the nodes that run such stages",
        },
    )


def _get_host(url: httpx.URL) -> str:
    return url.raw_host.decode("ascii").lower().rstrip(".")


def _parse_entry(entry: str) -> tuple[str, int | None]:
    """`host`, `host:port`, `[v6]` or `[v6]:port`; a bare v6 address has no port."""
    host, port = entry, ""
    if entry.startswith("["):
        host, _, rest = entry[1:].partition("]")
        port = rest.removeprefix(":")
    elif entry.count(":") == 1:
        host, _, port = entry.partition(":")
    return host.lower().rstrip("."), int(port) if port.isdecimal() else None
