"""The hosts that stages may call: those in GRIDQ_HTTP_ALLOW and no others, also after redirects."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gridq.config.settings import settings
from gridq.errors import HostNotAllowed
from gridq.protocol.models import Json
from gridq.stages.pure.bounds import describe_kind, make_input_error

if TYPE_CHECKING:
    import httpx

DEFAULT_PORTS = {"http": 80, "https": 443}


def parse_url(text: Json) -> httpx.URL:
    """Return `text` as an absolute http or https URL; raise StageError if it is not one."""
    import httpx

    if not isinstance(text, str):
        raise make_input_error(
            f"A URL must be text, not {describe_kind(text)}", "a URL such as https://example.com/a"
        )
    try:
        url = httpx.URL(text)
        port = url.port
    except (httpx.InvalidURL, ValueError, UnicodeError) as exc:
        raise make_input_error(f"The URL is invalid: {exc}", "a URL such as https://example.com/a") from None
    # Characters that a host may not have are %-escaped in it.
    if url.scheme not in DEFAULT_PORTS or not url.host or "%" in url.host or not 0 < (port or 80) < 65536:
        raise make_input_error(
            f"The URL has the scheme {url.scheme!r}, the host {url.host!r} and the port {port}",
            "an http or https URL with a host",
        )
    return url


def redact_url(url: httpx.URL) -> str:
    """Return `url` without login, query and fragment, which may have secrets, for messages."""
    return f"{url.scheme}://{_get_host(url)}{f':{url.port}' if url.port else ''}{url.path}"


def get_origin(url: httpx.URL) -> tuple[str, str, int]:
    return url.scheme, _get_host(url), url.port or DEFAULT_PORTS[url.scheme]


def check_allowed(url: httpx.URL) -> None:
    """Raise HostNotAllowed unless the allow-list has the host of `url`, with its port or without a port."""
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
            else "no host at all",
            "fix": f"add {host} to GRIDQ_HTTP_ALLOW on the machines that run such stages",
        },
    )


def _get_host(url: httpx.URL) -> str:
    return url.raw_host.decode("ascii").lower().rstrip(".")


def _parse_entry(entry: str) -> tuple[str, int | None]:
    """Parse `host`, `host:port`, `[v6]` or `[v6]:port`; a bare v6 address has no port."""
    host, port = entry, ""
    if entry.startswith("["):
        host, _, rest = entry[1:].partition("]")
        port = rest.removeprefix(":")
    elif entry.count(":") == 1:
        host, _, port = entry.partition(":")
    return host.lower().rstrip("."), int(port) if port.isdecimal() else None
