"""What a vendor's program sees of this machine: its environment, and whose login it uses.

A program gets the variables that every program needs, its provider's own, and those that the seat's table
names; no other. A key in the worker's environment so never reaches it unasked, where it would be used in
place of the owner's login.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from workers.profiles.llm.programs.vendor import Provider

EVERY = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TMPDIR"),
        *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
        *("http_proxy", "https_proxy", "all_proxy", "no_proxy"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS"),
        # where keyrings answer, which hold logins on many desktops
        *("XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS"),
    }
)
PLAIN = {"TERM": "dumb", "NO_COLOR": "1", "TZ": "UTC"}
"""What makes programs print plain text and ask nothing; a time of day that they tell is one of UTC."""


def environment_of(
    provider: Provider,
    home: str | None,
    named: Iterable[str] = (),
    environ: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """The environment of one program; `home`: the folder of its login, where it is not the usual one."""
    seen = {*EVERY, *provider.environment, *(provider.home if home is None else ()), *named}
    found = {name: value for name, value in environ.items() if name in seen or name.startswith("LC_")}
    if home is not None:
        found |= {name: value.format(home=home) for name, value in provider.home.items()}
    return {**PLAIN, **found, **provider.settings}


def login_of(provider: Provider, home: str | None, environ: Mapping[str, str] = os.environ) -> str:
    """The folder that holds the login, as one name for all the ways to write it."""
    if home is not None:
        found = Path(home)
    else:
        for each in provider.homes:
            told = environ.get(each.removeprefix("$"), "") if each.startswith("$") else each
            if told:
                break
        own = environ.get("HOME", "")
        found = Path(own + told[1:]) if told.startswith("~") and own else Path(told).expanduser()
    return str(Path(os.path.abspath(found)).resolve())
