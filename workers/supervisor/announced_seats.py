"""Seats that come while a deployment runs: those that files announce, which come and go with these files, and
those that a profile finds when it looks again.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from gridq.errors import GridError
from gridq.process.periodic import PeriodicThread
from gridq.profiles import profile
from workers.machine.probing import probe_machine
from workers.supervisor.deployment import Deployment

log = logging.getLogger(__name__)

SEARCH_SECONDS = 60.0
"""Time between two looks for seats that no file announces."""

LOOK_MS = 1000
"""Time after which the folders are read even if the system reports no change, as on some network disks."""


class AnnouncedSeats:
    """Watches the folders of the profiles and looks for new seats, from `start` to `stop`. `update`, in the
    main thread, applies what has changed since. `names`: the seats to serve; empty: all.
    """

    def __init__(self, deployment: Deployment, names: Sequence[str]) -> None:
        self._deployment = deployment
        self._names = names
        self._changed = threading.Event()
        self._stop = threading.Event()
        self._reported: set[str] = set()
        home = deployment.config.home
        profiles = profile.load_profiles(deployment.config.profiles).values()
        self._searches = [
            PeriodicThread("seat-search", SEARCH_SECONDS, partial(self._search, look))
            for found in profiles
            if (look := found.look_for_seats()) is not None
        ]
        self._folders = [each for found in profiles if (each := found.announcement_folder(home)) is not None]

    def start(self) -> None:
        """Begin to watch. A folder that does not exist is created, so that programs can write to it."""
        self._reported = {why for why in self._deployment.missing if self._names_folder(why)}
        for folder in self._folders:
            try:
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as exc:
                self._deployment.report(f"Engines cannot be announced in {folder}: {exc.strerror}")
        self._deployment.exit_callbacks.append(self.stop)
        for search in self._searches:
            search.start()
        folders = [folder for folder in self._folders if folder.is_dir()]
        if folders:
            arguments = [str(folder) for folder in folders]
            threading.Thread(target=self._watch, args=(arguments,), name="announced", daemon=True).start()

    def stop(self) -> None:
        self._stop.set()
        for search in self._searches:
            search.stop()

    def _search(self, look: Callable[[], bool]) -> None:
        if look():
            self._changed.set()

    def _watch(self, folders: Sequence[str]) -> None:
        import watchfiles

        seen: frozenset[tuple[str, int]] = frozenset()  # a file that came before the watch counts as new
        options: dict[str, Any] = {"recursive": False, "yield_on_timeout": True, "raise_interrupt": False}
        try:
            for _ in watchfiles.watch(
                *folders, stop_event=self._stop, debounce=200, rust_timeout=LOOK_MS, **options
            ):
                found = frozenset(each for folder in folders for each in _list_files(Path(folder)))
                if found != seen:
                    seen = found
                    self._changed.set()
        except (OSError, RuntimeError) as exc:  # the system has no watches left, or the folder has gone
            log.warning("the folders of announced seats cannot be watched: %s", exc)

    def update(self) -> None:
        """Start, restart and stop the seats whose files have changed, and start those that were found since.
        Say once what is wrong with a file.
        """
        if not self._changed.is_set():
            return
        self._changed.clear()
        deployment = self._deployment
        try:
            found = probe_machine(deployment.config, profile.load_profiles(deployment.config.profiles))
        except GridError as exc:
            deployment.report(f"Announced seats are not updated: {exc}")
            return
        wanted = {  # an engine that no table names has a notice, which says how not to lend it
            seat.name: seat
            for seat in found.seats
            if (seat.offer.announcement or seat.offer.notice)
            and (not self._names or seat.name in self._names)
        }
        served = deployment.list_seats()
        for part, seat in served.items():
            if seat.offer.announcement and seat.name not in wanted:
                deployment.supervisor.remove(part)
                deployment.report(f"{seat.name} is no longer announced: stopped")
        present = {seat.name: seat for seat in served.values()}
        for name, seat in wanted.items():
            before = present.get(name)
            if before is None or before.offer.announcement != seat.offer.announcement:
                deployment.replace_seat(seat)
                deployment.report(seat.offer.notice or f"{name} is announced: {seat.offer.note}")
        problems = {why for why in found.missing if self._names_folder(why)}
        for why in sorted(problems - self._reported):
            deployment.report(why)
        self._reported = problems
        deployment.missing = found.missing
        deployment.write_record()

    def _names_folder(self, sentence: str) -> bool:
        return any(str(folder) in sentence for folder in self._folders)


def _list_files(folder: Path) -> Iterator[tuple[str, int]]:
    """Yield each file that announces something, with the time of its last change."""
    for path in folder.glob("*.json"):
        with contextlib.suppress(OSError):
            yield str(path), path.stat().st_mtime_ns
