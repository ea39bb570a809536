"""`gridq join`: check that a machine can join a grid, then write its configuration."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from redis import Redis
from redis.exceptions import RedisError

from gridq.config.home import (
    CONFIG_FILE,
    GRID_RECORD,
    WORKER_RECORD,
    is_locked,
    make_folder_error,
    read_config,
    write_private,
)
from gridq.config.machine_id import get_host_id, get_machine_id
from gridq.config.urls import add_password, check_url
from gridq.errors import ConfigError, JoinRefused
from gridq.seats import registry
from gridq.store.connection import check_server, connect, redact_url, translate_error
from gridq.store.keys import Keys
from workers.machine import join_tokens
from workers.machine.join_tokens import JoinToken
from workers.machine.run_records import make_already_running_error

WARN_SKEW_SECONDS = 2.0
MAX_SKEW_SECONDS = 60.0
"""Limits on the difference between this machine's clock and the server's. Leases use only the server's clock,
so a small difference spoils no more than the times in tables; a large one breaks certificates and logs.
"""


@dataclass(frozen=True, slots=True)
class JoinResult:
    """A machine that has joined. `server`: the grid's URL without the password. `config`: the file written.
    `skew`: seconds that this machine's clock is ahead of the server's.
    """

    server: str
    machine: str
    config: Path
    skew: float


def join(url: str, token: JoinToken, home: Path, *, warn: Callable[[str], None]) -> JoinResult:
    """Check everything, use the token, write `<home>/config.toml`. If a check fails, nothing is written and
    the token can be used again. `warn` gets a line for what is odd, but no obstacle.

    BrokerError: the server cannot be used. JoinTokenInvalid. JoinRefused: the clock, version or machine id.
    ConfigError: the URL or the home folder. AlreadyRunning: a grid or a worker runs in this home.
    """
    check_environment()
    url = add_login(url, token)
    try:
        check_url(url)
    except ConfigError as exc:
        exc.details["path"] = "URL"
        raise
    for name in (GRID_RECORD, WORKER_RECORD):
        if is_locked(home, name):
            raise make_already_running_error(home, name)
    check_home(home)
    machine = get_machine_id(home)
    keys = Keys(token.prefix)
    with connect(url, name="gridq-join", retry=False) as client:
        check_server(client)
        try:
            skew = check_clock(client, warn)
            join_tokens.check(client, keys, token)
            seats = registry.read_advertisements(client, keys)
            check_versions([token.version, *(seat.version for seat in seats)])
            check_machine(client, keys, home, machine, [s.seat for s in seats if s.machine == machine])
            join_tokens.use(client, keys, token)
        except RedisError as exc:
            raise translate_error(exc, url) from exc
    path = write_config(home, {"broker_url": url, "prefix": token.prefix})
    return JoinResult(redact_url(url), machine, path, skew)


def check_environment() -> None:
    """Raise ConfigError if the environment names a grid: it would override the file written here."""
    for name in ("GRIDQ_BROKER_URL", "GRIDQ_PREFIX"):
        for variable in (name, f"{name}_FILE"):
            if os.environ.get(variable):
                raise ConfigError(
                    f"{variable} is set, and would override what gridq join writes",
                    {"path": variable, "fix": f"unset {variable}"},
                )


def add_login(url: str, token: JoinToken) -> str:
    """Return `url` with the token's user and password, unless it has its own."""
    try:
        login = urlsplit(url).netloc.rpartition("@")[0]
    except ValueError:
        return url  # check_url reports it
    if not login and token.user and "://" in url:
        url = url.replace("://", f"://{quote(token.user, safe='')}@", 1)
    return add_password(url, token.password) if token.password else url


def check_home(home: Path) -> None:
    """Raise ConfigError if somebody else can write in the home folder: its files are trusted."""
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        about = home.stat()
    except OSError as exc:
        raise make_folder_error(home, exc) from None
    if about.st_uid != os.getuid() or not os.access(home, os.W_OK | os.X_OK):
        raise ConfigError(
            f"The folder {home} does not belong to you",
            {"path": str(home), "fix": "set GRIDQ_HOME to a folder of your own"},
        )
    if about.st_mode & 0o022:
        raise ConfigError(
            f"Other users can write to {home}", {"path": str(home), "fix": f"chmod go-w {home}"}
        )
    read_config(home)


def check_clock(client: Redis, warn: Callable[[str], None]) -> float:
    """Return the seconds that this machine's clock is ahead of the server's. JoinRefused: it is too
    far off.
    """
    before = time.time()
    seconds, micro = client.time()
    skew = (before + time.time()) / 2 - (seconds + micro / 1_000_000)
    message = f"This machine's clock is {abs(skew):.1f} s {'ahead of' if skew > 0 else 'behind'} the server's"
    fix = "turn on time synchronisation on both machines (timedatectl set-ntp true)"
    if abs(skew) > MAX_SKEW_SECONDS:
        raise JoinRefused(message, {"expected": f"at most {MAX_SKEW_SECONDS:g} s", "fix": fix})
    if abs(skew) > WARN_SKEW_SECONDS:
        warn(f"{message}, so times in tables will be off. Fix: {fix}")
    return skew


def check_versions(others: list[str]) -> None:
    """Raise JoinRefused if the grid runs another minor version of gridq."""
    mine = version("gridq")
    for other in others:
        if other and other.split(".")[:2] != mine.split(".")[:2]:
            raise JoinRefused(
                f"This machine has gridq {mine}, the grid has {other}",
                {"expected": "the same major and minor version", "fix": f"install gridq {other}"},
            )


def check_machine(client: Redis, keys: Keys, home: Path, machine: str, live: list[str]) -> None:
    """Raise JoinRefused if this machine's id is in use elsewhere: the home folder is a copy."""
    for seat in live:
        host: Any = client.hget(keys("seat", seat), "host")
        here = host is not None and host.decode() == get_host_id(machine)
        if not here or not is_locked(home / "seats", seat.partition(".")[2]):
            where = "another home folder of this host" if here else "another host"
            raise JoinRefused(
                f"The machine id {machine!r} is in use from {where}",
                {
                    "path": str(home / "machine"),
                    "reason": f"a worker there serves {seat}",
                    "fix": f"stop that worker; if this folder is a copy, delete {home / 'machine'}",
                },
            )


def write_config(home: Path, values: dict[str, str]) -> Path:
    """Add `values` to the settings in `<home>/config.toml` and return its path."""
    path = home / CONFIG_FILE
    # JSON strings, numbers and lists are valid TOML; null is not, and no settings file holds it.
    lines = [
        f"{name} = {json.dumps(value, ensure_ascii=False)}"
        for name, value in (read_config(home) | values).items()
    ]
    write_private(
        path,
        "# Settings of this machine. gridq join wrote broker_url and prefix.\n" + "\n".join(lines) + "\n",
    )
    return path
