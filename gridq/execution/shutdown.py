"""Shutdown of a worker or a router: the first signal lets what runs finish, the second ends it at once."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

from redis.exceptions import RedisError

from gridq.execution.session import Session
from gridq.store.connection import shorten_timeouts

log = logging.getLogger(__name__)

EXIT_GRACE_SECONDS = 5.0
"""The time after the drain until a process ends although its stage does not stop."""

SECOND_SIGNAL_GRACE_SECONDS = 1.0
"""The same after a second signal; also how long the server may then take to answer."""

SERVER_SECONDS = 2.0
"""The time in which the server must hear that the process drains."""

STUCK_EXIT_CODE = os.EX_TEMPFAIL
"""The exit code of a process whose Celery hangs."""


class Shutdown:
    """The shutdown of the process that runs `session`.

    `on_draining()` is called once the server knows that the seat drains, `leave()` before a process is ended
    whose Celery hangs.
    """

    def __init__(
        self,
        session: Session,
        *,
        on_draining: Callable[[], None] = lambda: None,
        leave: Callable[[], None] = lambda: None,
    ) -> None:
        self.session = session
        self._on_draining = on_draining
        self._leave = leave
        self._signals = 0

    def catch_early_signals(self) -> None:
        """Let SIGTERM end the session and the process, until Celery handles signals."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._leave_early)

    def catch_quit(self) -> None:
        """Let SIGQUIT end the process at once. Celery's own handler waits for what runs."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGQUIT, self._quit)

    def handle_signal(self, *_: Any) -> None:
        """Drain at the first signal; at the second, hand everything back and end. Returns at once."""
        self._signals += 1
        if self._signals == 1:
            self._catch_further_signals()
            # A server that hangs delays every command: together they have an end.
            self._exit_after(self.session.config.drain + 2 * SERVER_SECONDS + EXIT_GRACE_SECONDS)
            threading.Thread(target=self._drain, name="drain", daemon=True).start()
        elif self._signals == 2:
            self._exit_after(EXIT_GRACE_SECONDS)
            threading.Thread(target=self._end, name="end", daemon=True).start()

    def end_without_celery(self) -> None:
        """Drain and leave as usual, then end a process whose Celery hangs. Returns at once."""
        threading.Thread(target=self._end_without_celery, name="stuck", daemon=True).start()

    def _catch_further_signals(self) -> None:
        # Celery takes a second SIGTERM for the first one, and at the second SIGINT it waits for as long as
        # anything runs.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
                signal.signal(number, self.handle_signal)

    def _leave_early(self, *_: Any) -> None:
        threading.Thread(target=self._stop_early, name="end", daemon=True).start()

    def _stop_early(self) -> None:
        try:
            shorten_timeouts(self.session.scripts.client, SECOND_SIGNAL_GRACE_SECONDS)
            self.session.stop(0)
        finally:
            os._exit(os.EX_OK)

    def _quit(self, *_: Any) -> None:
        from celery.worker import state

        state.should_stop = os.EX_OK
        self.handle_signal()
        self.handle_signal()

    def _drain(self) -> None:
        client = self.session.scripts.client
        shorten_timeouts(client, SERVER_SECONDS)
        heard = self.session.drain()
        if heard:
            try:
                self._on_draining()
            except RedisError as exc:
                log.warning("the draining seat could not be advertised: %s", exc)
        if not self.session.busy:
            shorten_timeouts(client, SECOND_SIGNAL_GRACE_SECONDS)
        self.session.stop()
        # Where the server is away, Celery may wait for it, and there is nothing to lose.
        self._exit_after(EXIT_GRACE_SECONDS if heard or self.session.busy else SECOND_SIGNAL_GRACE_SECONDS)

    def _end(self) -> None:
        shorten_timeouts(self.session.scripts.client, SECOND_SIGNAL_GRACE_SECONDS)
        self.session.stop(0)
        self._exit_after(SECOND_SIGNAL_GRACE_SECONDS)

    def _exit_after(self, seconds: float) -> None:
        timer = threading.Timer(seconds, self._exit)
        timer.daemon = True
        timer.start()

    def _exit(self) -> None:  # a thread that never stops would keep the process alive for ever
        what = "a stage" if self.session.busy else "Celery"  # which waits for a server that is away
        log.error("%s did not stop: the worker ends without it", what)
        os._exit(1)

    def _end_without_celery(self) -> None:
        try:
            self.session.stop()
            self._leave()
        finally:
            os._exit(STUCK_EXIT_CODE)
