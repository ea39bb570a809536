"""Build the environment of a vendor's program, and find the folder of its login.

A program gets only the variables that every program needs, its own, and those that the seat's table names.
Otherwise it would use a key from the worker's environment in place of its owner's login.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from workers.profiles.llm.programs.vendor import VendorProgram

COMMON_VARIABLES = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TMPDIR"),
        *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
        *("http_proxy", "https_proxy", "all_proxy", "no_proxy"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS"),
        # for keyrings, which hold logins on many desktops
        *("XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS"),
    }
)
PLAIN_OUTPUT = {"TERM": "dumb", "NO_COLOR": "1", "TZ": "UTC"}
"""Makes programs print plain text, ask nothing and print times in UTC."""


def build_environment(
    program: VendorProgram,
    home: str | None,
    extra_names: Iterable[str] = (),
    environ: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """Return the environment of one program. `home` is the folder of its login, None for the default one.

    `extra_names` are further variables that the program may see.
    """
    names = {*COMMON_VARIABLES, *program.environment, *(program.home if home is None else ()), *extra_names}
    environment = {name: value for name, value in environ.items() if name in names or name.startswith("LC_")}
    if home is not None:
        environment |= {name: value.format(home=home) for name, value in program.home.items()}
    return {**PLAIN_OUTPUT, **environment, **program.settings}


def find_login_folder(
    program: VendorProgram, home: str | None, environ: Mapping[str, str] = os.environ
) -> str:
    """Return the resolved path of the folder that holds the login."""
    if home is not None:
        folder = Path(home)
    else:
        for each in program.homes:
            path = environ.get(each.removeprefix("$"), "") if each.startswith("$") else each
            if path:
                break
        user_home = environ.get("HOME", "")
        folder = Path(user_home + path[1:]) if path.startswith("~") and user_home else Path(path).expanduser()
    return str(Path(os.path.abspath(folder)).resolve())
