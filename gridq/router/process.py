"""The router as a process: a worker of the app that consumes the router's queue becomes a router."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery import signals

from gridq.process import parent_watch, startup_errors
from gridq.protocol import queue_names

if TYPE_CHECKING:
    from gridq.router.router import Router


class RouterProcess:
    """The router of this process, if it is one; Celery's signals drive its life."""

    def __init__(self) -> None:
        self.router: Router | None = None

    def connect_signals(self) -> None:
        """Follow the life of this process's Celery worker."""
        signals.celeryd_after_setup.connect(self._become_router, weak=False)
        signals.worker_ready.connect(self._handle_signals, weak=False)
        signals.worker_shutting_down.connect(self._begin_shutdown, weak=False)
        signals.worker_shutdown.connect(self._stop, weak=False)

    def _become_router(self, instance: Any = None, **_: Any) -> None:
        app = instance.app
        if app.main != "gridq" or queue_names.ROUTER not in app.amqp.queues.consume_from:
            return
        parent_watch.end_with_parent()
        with startup_errors.exit_on_error():
            # Only here: every worker of the app imports this module, and few are routers.
            from gridq.router.router import Router

            router = Router(app, instance.concurrency, instance.hostname)
            router.start()
        self.router = router
        app.amqp.queues.select_add(queue_names.make_seat_queue(router.session.seat))
        app.amqp.queues.select_add(queue_names.PURE)

    def _handle_signals(self, **_: Any) -> None:
        if self.router is not None:
            self.router.shutdown.catch_quit()

    def _begin_shutdown(self, **_: Any) -> None:
        if self.router is not None:
            self.router.shutdown.handle_signal()

    def _stop(self, **_: Any) -> None:
        if self.router is not None:
            self.router.stop()
            self.router = None


RouterProcess().connect_signals()
