"""The routers' part in limits: they read the quotas file, put it in force, and write when windows reset.

A router writes limits when it starts, when its file changes, and when the server has lost them. If a changed
file has an error, the previous limits stay in force; the log and `gridq quota` show the error. A router
without a file keeps the limits that another router wrote. The router whose file is in force confirms that
again and again, so `gridq quota` can show when no router does any more.
"""

from __future__ import annotations

import json
import logging
import socket
import time
from itertools import chain
from pathlib import Path
from typing import Any

from redis import Redis

from gridq.config.settings import Settings
from gridq.errors import QuotasFileError
from gridq.limits.quotas_file import Limits, load
from gridq.process.periodic import PeriodicThread
from gridq.protocol.calendar import compute_calendar
from gridq.protocol.queue_aliases import NO_ALIASES, QueueAliases
from gridq.store.capacity import write_record
from gridq.store.connection import now_ms
from gridq.store.keys import Keys
from gridq.store.scripts import Scripts

log = logging.getLogger(__name__)

CHECK_SECONDS = 2.0
"""The time between two checks of the file."""

CALENDAR_SECONDS = 3600.0
"""The time between two updates of the calendar."""

Stamp = tuple[int, int, int] | None


class QuotasEnforcer:
    """Keeps a router's quotas file in force between `start` and `stop`."""

    def __init__(self, scripts: Scripts, config: Settings) -> None:
        self.scripts = scripts
        self.config = config
        self._limits: Limits | None = None
        self._stamp: Stamp = None
        self._error = ""
        self._reported_digest = ""
        self._calendar_due = 0.0
        self._repeat = PeriodicThread("limits", CHECK_SECONDS, self.run_once)

    def start(self) -> None:
        """Put the file in force. Raises QuotasFileError if it has an error."""
        self._write_calendar(first=True)
        if self.config.quotas is not None:
            self._stamp = _read_stamp(self.config.quotas)
            self._limits = load(self.config.quotas)
            self._apply()
        self._log_state()
        self._repeat.start()

    def stop(self) -> None:
        self._repeat.stop()

    def run_once(self) -> None:
        """Check the file, the limits in force, and the calendar."""
        if time.monotonic() >= self._calendar_due:
            self._write_calendar()
        if self.config.quotas is None or self._limits is None:
            return
        stamp = _read_stamp(self.config.quotas)
        if stamp != self._stamp:
            self._stamp = stamp
            self._reload(self.config.quotas)
        self._check_in_force(self._limits)

    def _reload(self, path: Path) -> None:
        try:
            limits = load(path)
        except QuotasFileError as exc:
            self._error = str(exc)
            log.error("the changed quotas file has an error, so the previous limits stay in force: %s", exc)
            write_record(self.scripts.client, "HSET", self.scripts.keys("limits"), "error", self._error)
            return
        self._error = ""
        self._limits = limits
        self._apply()
        log.info("new limits are in force from %s", path)

    def _check_in_force(self, mine: Limits) -> None:
        digest = self.scripts.confirm_limits(mine.digest, self._source)
        if not digest:  # an operator lifted them, or the server is new
            self._apply()
        elif digest not in (mine.digest, self._reported_digest):
            self._reported_digest = digest
            log.warning(
                "the limits in force are not those of %s: another router has a different quotas file. "
                "Give all routers the same file",
                self.config.quotas,
            )

    def _apply(self) -> None:
        assert self._limits is not None
        put_in_force(self.scripts, self._limits, self._source)
        if self._error:
            write_record(self.scripts.client, "HSET", self.scripts.keys("limits"), "error", self._error)

    @property
    def _source(self) -> str:
        return f"{socket.gethostname()}:{self.config.quotas}"

    def _write_calendar(self, *, first: bool = False) -> None:
        """Write when windows reset in this router's time zone. If another zone is in force, only warn."""
        client, key = self.scripts.client, self.scripts.keys("calendar")
        self._calendar_due = time.monotonic() + CALENDAR_SECONDS
        zone: Any = client.hget(key, "zone")
        if zone is not None and zone.decode() != self.config.timezone:
            log.warning(
                "windows have reset in the time zone %s so far, but this router's is %s: set the same "
                "GRIDQ_TIMEZONE for all routers",
                zone.decode(),
                self.config.timezone,
            )
            if not first:
                return
        write_calendar(self.scripts, self.config.timezone)

    def _log_state(self) -> None:
        client, keys = self.scripts.client, self.scripts.keys
        if self._limits is not None:
            log.info("limits are in force from %s", self.config.quotas)
        elif client.exists(keys("limits")):
            log.info(
                "this router has no quotas file, but limits of another router are in force: see `gridq quota`"
            )
        elif not client.exists(keys("api_keys")):
            log.info("no quotas file and no API keys: the grid is single-tenant and accepts every job")


def put_in_force(scripts: Scripts, limits: Limits, source: str) -> None:
    """Put limits in force at once for every router and client. `source` says where they come from."""
    about = {"source": source, "at": now_ms(scripts.client)}
    scripts.apply_limits(limits.digest, json.dumps(about), limits.to_fields())


def lift(scripts: Scripts) -> bool:
    """Remove all limits. Return False if there were none."""
    existed = bool(scripts.client.exists(scripts.keys("limits")))
    scripts.apply_limits("", "", {})
    return existed


def read_aliases(client: Redis, keys: Keys) -> QueueAliases:
    """Return the aliases of models that are in force."""
    text: Any = client.hget(keys("limits"), "models")
    return QueueAliases.from_json(text) if text else NO_ALIASES


def write_calendar(scripts: Scripts, zone: str) -> None:
    """Write when windows reset in the time zone `zone`."""
    calendar = compute_calendar(zone, now_ms(scripts.client))
    fields = {period: " ".join(map(str, instants)) for period, instants in calendar.items()}
    words = chain(("zone", zone), *fields.items())
    write_record(scripts.client, "HSET", scripts.keys("calendar"), *words)


def _read_stamp(path: Path) -> Stamp:
    """Return what changes with a file's content; None if there is no file."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino
