"""The routers' part in limits: they read the quotas file, put it in force, and say when windows turn.

A router writes limits when it starts and when its file changes, and again to a server that has lost them. A
changed file with a mistake in it is refused: what is in force stays, and the log and `gridq quota` say why.
Without a file a router leaves the limits alone that another has put in force. Who has the file whose limits
are in force says so again and again; where nobody does any more, `gridq quota` tells it.
"""

from __future__ import annotations

import json
import logging
import socket
import time
from pathlib import Path
from typing import Any

from gridq.config.settings import Settings
from gridq.errors import QuotasFileError
from gridq.limits.quotas_file import Limits, load
from gridq.process.periodic import PeriodicThread
from gridq.protocol.calendar import compute_calendar
from gridq.store.connection import now_ms
from gridq.store.scripts import Scripts

log = logging.getLogger(__name__)

EVERY = 2.0
"""Seconds between two looks at the file."""

CALENDAR_EVERY = 3600.0

Stamp = tuple[int, int, int] | None


class QuotasEnforcer:
    """Keeps a router's quotas file in force between `start` and `stop`."""

    def __init__(self, scripts: Scripts, config: Settings) -> None:
        self.scripts = scripts
        self.config = config
        self._limits: Limits | None = None
        self._stamp: Stamp = None
        self._error = ""
        self._told = ""
        self._calendar_due = 0.0
        self._repeat = PeriodicThread("limits", EVERY, self.once)

    def start(self) -> None:
        """Put the file in force and say so. QuotasFileError: it has a mistake in it."""
        self._write_calendar(first=True)
        if self.config.quotas is not None:
            self._stamp = _stamp(self.config.quotas)
            self._limits = load(self.config.quotas)
            self._put()
        self._say()
        self._repeat.start()

    def stop(self) -> None:
        self._repeat.stop()

    def once(self) -> None:
        """One look: at the file, at what is in force, at the calendar."""
        if time.monotonic() >= self._calendar_due:
            self._write_calendar()
        if self.config.quotas is None or self._limits is None:
            return
        stamp = _stamp(self.config.quotas)
        if stamp != self._stamp:
            self._stamp = stamp
            self._reload(self.config.quotas)
        self._check_in_force(self._limits)

    def _reload(self, path: Path) -> None:
        try:
            limits = load(path)
        except QuotasFileError as exc:
            self._error = str(exc)
            log.error("the changed quotas file is refused and the limits before stay in force: %s", exc)
            self.scripts.client.hset(self.scripts.keys("limits"), "error", self._error)
            return
        self._error = ""
        self._limits = limits
        self._put()
        log.info("new limits are in force from %s", path)

    def _check_in_force(self, mine: Limits) -> None:
        digest = self.scripts.uphold(mine.digest, self._source)
        if not digest:  # lifted by hand, or a new server
            self._put()
        elif digest not in (mine.digest, self._told):
            self._told = digest
            log.warning(
                "the limits in force are not those of %s: another router's quotas file differs. "
                "Give all routers the same file",
                self.config.quotas,
            )

    def _put(self) -> None:
        assert self._limits is not None
        put_in_force(self.scripts, self._limits, self._source)
        if self._error:
            self.scripts.client.hset(self.scripts.keys("limits"), "error", self._error)

    @property
    def _source(self) -> str:
        return f"{socket.gethostname()}:{self.config.quotas}"

    def _write_calendar(self, *, first: bool = False) -> None:
        """Say when windows turn, in this router's time zone; where another router's counts, only warn."""
        client, key = self.scripts.client, self.scripts.keys("calendar")
        self._calendar_due = time.monotonic() + CALENDAR_EVERY
        zone: Any = client.hget(key, "zone")
        if zone is not None and zone.decode() != self.config.timezone:
            log.warning("windows turned by %s; this router's are %s", zone.decode(), self.config.timezone)
            if not first:
                return
        write_calendar(self.scripts, self.config.timezone)

    def _say(self) -> None:
        client, keys = self.scripts.client, self.scripts.keys
        if self._limits is not None:
            log.info("limits are in force from %s", self.config.quotas)
        elif client.exists(keys("limits")):
            log.info(
                "this router has no quotas file; limits are in force that another router wrote: "
                "`gridq quota` says which, and whether it is still there"
            )
        elif not client.exists(keys("api_keys")):
            log.info("no quotas file and no API keys: the grid is single-tenant and takes every job")


def put_in_force(scripts: Scripts, limits: Limits, source: str) -> None:
    """Put limits in force at once, for every router and client; `source` says where they come from."""
    about = {"source": source, "at": now_ms(scripts.client)}
    scripts.limit(limits.digest, json.dumps(about), limits.fields())


def lift(scripts: Scripts) -> bool:
    """Lift all limits; False where there were none."""
    there = bool(scripts.client.exists(scripts.keys("limits")))
    scripts.limit("", "", {})
    return there


def write_calendar(scripts: Scripts, zone: str) -> None:
    """Write when windows turn in `zone`."""
    turns = compute_calendar(zone, now_ms(scripts.client))
    fields: dict[Any, Any] = {period: " ".join(map(str, instants)) for period, instants in turns.items()}
    scripts.client.hset(scripts.keys("calendar"), mapping={"zone": zone, **fields})


def _stamp(path: Path) -> Stamp:
    """What changes with a file's content."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
