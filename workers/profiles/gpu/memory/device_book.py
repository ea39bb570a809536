"""The books of a device's memory: who has reserved how much, over all gridq processes of this machine.

A driver reports memory late, and says nothing of a load that is about to begin. So every load reserves first,
in one small file for each device, in a folder that all homes of a user share. An entry names the processes
that hold the memory, with the times of their starts: once they are gone, it is void. With the last entry go
its file and, unless BOOKS_VARIABLE names it, the folder.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gridq.config.locked_json import read_json, update_json
from gridq.errors import ConfigError, SeatUnavailable
from workers.profiles.gpu.devices.processes import PROC, read_start

log = logging.getLogger(__name__)

BOOKS_VARIABLE = "GRIDQ_DEVICE_BOOKS"
"""The environment variable with another folder for the books."""


@dataclass(frozen=True)
class Refusal:
    """A load that does not fit now, in MB: what it needs, what is free for it, and what the device has."""

    need_mb: int
    free_mb: int
    total_mb: int


class Reservation:
    """Memory of a device that one load holds until `release`, or until its processes are gone.

    A book that cannot be written now does not stop a model from being used or unloaded: what was released
    leaves it with the next change.
    """

    def __init__(self, book: DeviceBook, entry_id: str, mb: int) -> None:
        self._book, self._id = book, entry_id
        self.mb = mb

    def settle(self, mb: int, pid: int | None) -> None:
        """State what the model needs now that it is loaded, and the process that holds the memory."""
        self.mb = mb
        self._book.change(self._id, mb=mb, is_loaded=True, child=_identify(pid) if pid else None)

    def assign(self, pid: int | None) -> None:
        """State the process that loads the model."""
        if pid:
            self._book.change(self._id, child=_identify(pid))

    def release(self) -> None:
        """Give the memory back. A second call does nothing."""
        self._book.release(self._id)


class DeviceBook:
    """The reservations on the device `key`: its UUID, or `cpu`."""

    def __init__(self, key: str, folder: Path | None = None) -> None:
        self._folder = folder
        self._name = re.sub(r"[^A-Za-z0-9_-]", "_", key) or "device"
        self._released: set[str] = set()

    def reserve(
        self,
        mb: int,
        *,
        total_mb: int,
        free_mb: int | None,
        holder: str,
        model: str,
        cap_mb: int | None = None,
        measure: Callable[[int], int] = lambda pid: 0,
    ) -> Reservation | Refusal:
        """Reserve `mb` for a load, at once or not at all.

        Free is the least of three: `total_mb` without all reservations; `free_mb`, the driver's word, without
        what other loads have reserved and not yet taken; and `cap_mb`, the owner's limit for the seat
        `holder`, without its own reservations. `measure` returns what a process holds of the device now.

        Raises SeatUnavailable if the book cannot be written.
        """
        with self._report_faults(), self._update() as entries:
            reserved = sum(each["mb"] for each in entries.values())
            free = total_mb - reserved
            if free_mb is not None:
                pending = sum(max(0, each["mb"] - _measure(each, measure)) for each in entries.values())
                free = min(free, free_mb - pending)
            if cap_mb is not None:
                own = sum(each["mb"] for each in entries.values() if each.get("holder") == holder)
                free = min(free, cap_mb - own)
            if mb > free:
                return Refusal(mb, max(0, free), min(total_mb, cap_mb or total_mb))
            return self._add(entries, mb, holder, model)

    def note(self, mb: int, *, holder: str, model: str) -> Reservation | None:
        """Enter memory that is already taken, whatever is free. Return its reservation, None if the book
        cannot be written now.
        """
        with self._survive_faults(), self._update() as entries:
            return self._add(entries, mb, holder, model)
        return None

    def _add(self, entries: dict[str, Any], mb: int, holder: str, model: str) -> Reservation:
        entry_id = secrets.token_hex(6)
        entries[entry_id] = {
            "mb": mb,
            "holder": holder,
            "model": model,
            "owner": _identify(os.getpid()),
            "is_loaded": False,
        }
        return Reservation(self, entry_id, mb)

    def read(self) -> list[dict[str, Any]]:
        """Return the live reservations: `mb`, `holder`, `model` and `is_loaded` of each."""
        return list(_keep_live(read_json(self._find_path())).values())

    def change(self, entry_id: str, **fields: Any) -> None:
        """Change an entry. One that is not there, because its folder is gone, stays away."""
        with self._survive_faults(), self._update() as entries:
            if entry_id in entries:
                entries[entry_id] |= {name: value for name, value in fields.items() if value is not None}

    def release(self, entry_id: str) -> None:
        """Remove an entry."""
        self._released.add(entry_id)
        with self._survive_faults(), self._update():
            pass  # which removes what was released

    @contextmanager
    def _report_faults(self) -> Iterator[None]:
        """Raise SeatUnavailable in place of the faults of a book: another seat may load the model."""
        try:
            yield
        except (OSError, ConfigError) as exc:
            reason = exc.message if isinstance(exc, ConfigError) else f"{exc.strerror}: {exc.filename}"
            fix = f"make its folder writable, or set {BOOKS_VARIABLE} to another"
            raise SeatUnavailable(
                f"The book of the memory of {self._name} cannot be written", {"reason": reason, "fix": fix}
            ) from None

    @contextmanager
    def _survive_faults(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ConfigError) as exc:
            log.warning("the book of %s cannot be written: %s", self._name, exc)

    def _find_path(self) -> Path:
        return (self._folder or find_books_folder()) / f"{self._name}.json"

    @contextmanager
    def _update(self) -> Iterator[dict[str, Any]]:
        """Yield the live entries, alone; what they are after the block is written."""
        path = self._find_path()
        with update_json(path) as book:
            self._find_path()  # the folder may be a new one since the check; from here on it stays
            entries = _keep_live(book)
            released = self._released.copy()
            for entry_id in released:
                entries.pop(entry_id, None)
            yield entries
            if not entries:
                book.clear()
        self._released -= released
        if not (book or self._folder or os.environ.get(BOOKS_VARIABLE)):
            with suppress(OSError):  # it has other books
                path.parent.rmdir()


def find_books_folder() -> Path:
    """Return the folder of the books: one for each user of the machine, whatever the home folder. It is there
    while a book is.

    Raises ConfigError if another user owns it: he could state what he likes in it.
    """
    stated = os.environ.get(BOOKS_VARIABLE)
    if stated:
        return Path(stated)
    base = os.environ.get("XDG_RUNTIME_DIR")
    folder = Path(base) / "gridq" if base else Path(tempfile.gettempdir()) / f"gridq-{os.getuid()}"
    try:
        found = folder.lstat()
    except FileNotFoundError:
        return folder
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise ConfigError(
            f"The folder {folder} belongs to someone else, or others can write to it",
            {"path": str(folder), "fix": f"remove it, or set {BOOKS_VARIABLE} to a folder of your own"},
        )
    return folder


def _keep_live(book: dict[str, Any]) -> dict[str, Any]:
    """Return the entries of a book after removing those whose processes are gone, and damaged ones.

    A load that dies takes its child with it, but the child's memory is taken until the child is gone.
    """
    entries = book.get("entries")
    entries = book["entries"] = entries if isinstance(entries, dict) else {}
    for entry_id, entry in list(entries.items()):
        is_valid = isinstance(entry, dict) and isinstance(entry.get("mb"), int) and entry["mb"] >= 0
        holders = [entry.get("child"), entry.get("owner")] if is_valid else []
        if is_valid and entry.get("is_loaded"):
            holders = [entry.get("child") or entry.get("owner")]
        if not any(_is_alive(each) for each in holders):
            del entries[entry_id]
    return entries


def _identify(pid: int) -> list[Any]:
    return [pid, read_start(pid)]


def _is_alive(process: Any) -> bool:
    if not isinstance(process, list) or len(process) != 2 or not isinstance(process[0], int):
        return False
    pid, start = process
    if start is None and PROC.is_dir():
        return False  # it was gone when it was noted
    if start is None:  # a system without /proc: a process id that is used again keeps an entry too long
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            return True
        return True
    return bool(read_start(pid) == start)


def _measure(entry: dict[str, Any], measure: Callable[[int], int]) -> int:
    child = entry.get("child")
    if isinstance(child, list) and child and isinstance(child[0], int):
        return measure(child[0])
    return 0
