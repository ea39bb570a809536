"""How a worker or a router ends: on a first signal it lets what runs finish, on a second one at once."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

from redis.exceptions import RedisError

from gridq.execution.session import Session
from gridq.store.connection import hurry

log = logging.getLogger(__name__)

LAST_WORD = 5.0
"""Seconds after the drain's end until a process whose stage does not stop ends all the same."""

AT_ONCE = 1.0
"""The same after a second signal, and how long the server may then take to hear of it."""

HEARS = 2.0
"""Seconds that the server may take to hear that the process drains."""

STUCK = os.EX_TEMPFAIL
"""The exit code of a process whose Celery hangs."""


class Ending:
    """The end of the process that runs `session`. `told()` is called when the server knows that it drains,
    `leave()` before a process that cannot end in Celery's own way is ended without it.
    """

    def __init__(
        self,
        session: Session,
        *,
        told: Callable[[], None] = lambda: None,
        leave: Callable[[], None] = lambda: None,
    ) -> None:
        self.session = session
        self._told = told
        self._leave = leave
        self._signals = 0

    def starting(self) -> None:
        """The session goes live before Celery heeds signals: until then, SIGTERM leaves and ends."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._early)

    def heed(self) -> None:
        """Let SIGQUIT end the process at once. Celery's own waits for what runs, and for nothing else."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGQUIT, self._quit)

    def signalled(self, *_: Any) -> None:
        """A signal came: drain; at the second one hand everything back and end. Returns at once."""
        self._signals += 1
        if self._signals == 1:
            self._catch()
            # Each word that a server is to hear which hangs takes its time: all of them together have an end.
            self._after(self.session.config.drain + 2 * HEARS + LAST_WORD)
            threading.Thread(target=self._drain, name="drain", daemon=True).start()
        elif self._signals == 2:
            self._after(LAST_WORD)
            threading.Thread(target=self._at_once, name="end", daemon=True).start()

    def stuck(self) -> None:
        """Celery hangs: finish, hand back and leave as in any drain, then end without it. Returns at once."""
        threading.Thread(target=self._without_celery, name="stuck", daemon=True).start()

    def _catch(self) -> None:
        # Celery takes a second SIGTERM for the first one again, and within the second SIGINT it waits for as
        # long as anything runs.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
                signal.signal(number, self.signalled)

    def _early(self, *_: Any) -> None:
        threading.Thread(target=self._unstarted, name="end", daemon=True).start()

    def _unstarted(self) -> None:
        try:
            hurry(self.session.scripts.client, AT_ONCE)
            self.session.stop(0)
        finally:
            os._exit(os.EX_OK)

    def _quit(self, *_: Any) -> None:
        from celery.worker import state

        state.should_stop = os.EX_OK
        self.signalled()
        self.signalled()

    def _drain(self) -> None:
        client = self.session.scripts.client
        hurry(client, HEARS)
        heard = self.session.drain()
        if heard:
            try:
                self._told()
            except RedisError as exc:
                log.warning("that the seat drains could not be shown: %s", exc)
        if not self.session.busy:
            hurry(client, AT_ONCE)
        self.session.stop()
        # Where the server is away Celery may wait for it, and has nothing to lose.
        self._after(LAST_WORD if heard or self.session.busy else AT_ONCE)

    def _at_once(self) -> None:
        hurry(self.session.scripts.client, AT_ONCE)
        self.session.stop(0)
        self._after(AT_ONCE)

    def _after(self, seconds: float) -> None:
        last = threading.Timer(seconds, self._end_now)
        last.daemon = True
        last.start()

    def _end_now(self) -> None:  # a thread that never stops would keep the process for ever
        what = "a stage" if self.session.busy else "Celery"  # which waits for a server that is away
        log.error("%s did not stop: the worker ends without it", what)
        os._exit(1)

    def _without_celery(self) -> None:
        try:
            self.session.stop()
            self._leave()
        finally:
            os._exit(STUCK)
