"""The router: admits what stands in the inbox, runs built-in pure stages, sweeps.

`celery -A gridq.app worker -Q gridq:router` is a router; any number may run side by side. Which of the app's
workers are routers is told by the queue they consume.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from celery import Celery, signals
from redis.exceptions import RedisError

from gridq import stages
from gridq.config.machine_id import machine_id
from gridq.config.settings import settings
from gridq.errors import GridError, GridFull, NotAdmitted, SchemaMismatch
from gridq.execution import session as executor
from gridq.execution.session import Session
from gridq.execution.shutdown import Ending
from gridq.jobs.record import options_of
from gridq.messaging import answers, wake_ups
from gridq.messaging.monitor_events import Monitors
from gridq.messaging.router_request import revoke_cancels
from gridq.messaging.transport import hang_up
from gridq.process import parent_watch, startup_errors
from gridq.process.watchdog import Watchdog
from gridq.profiles.profile import load
from gridq.protocol import queue_names
from gridq.store import values
from gridq.store.capacity import check_kept
from gridq.store.connection import connect
from gridq.store.readiness import AWAY, await_server
from gridq.store.scripts import Scripts
from gridq.telemetry import narration

if TYPE_CHECKING:
    from gridq.limits.enforcement import Limiting
    from gridq.router.governor.governor import Governor
    from gridq.router.sweep import Sweeper
    from gridq.submission.admission import Admission

log = logging.getLogger(__name__)

ADMITTED = 100
"""Jobs that a router takes from the inbox at once where no message tells it of them."""

RECORD_TTL = 3600.0
"""A router's seat has a new name at each start: its record need not live long."""


@dataclass
class Router:
    """The parts of one router process."""

    app: Celery
    scripts: Scripts
    admission: Admission
    session: Session
    sweeper: Sweeper
    governor: Governor
    limiting: Limiting
    ending: Ending = field(init=False)

    def __post_init__(self) -> None:
        self.ending = Ending(self.session)
        self._admits = threading.Lock()

    def admit(self, job: str) -> bool:
        """Admit one job of the inbox, or end it with the error that says why not. True where a pure stage is
        ready at once.
        """
        keys = self.scripts.keys
        sub: list[Any] = self.scripts.client.hmget(keys("sub", job), "graph", "in", "options", "celery")
        if sub[0] is None:  # admitted, cancelled or ended before: the message was a wake-up too many
            return False
        with narration.about(job=job):
            return self._admit(job, sub[0], sub[2] or b"{}", celery=sub[3] is not None)

    def _admit(self, job: str, graph: bytes, about: bytes, *, celery: bool) -> bool:
        try:
            options = options_of(json.loads(about))
            split = self.admission.split(values.read(self.scripts.client, self.scripts.keys, graph))
            self.admission.admit(job, split, b"", options, celery=celery, deadline=False)
        except (GridFull, SchemaMismatch):
            return False  # it was taken when there was room, and waits where it is
        except GridError as exc:
            return self._refuse(job, exc)
        except (RedisError, OSError):
            raise  # it stays in the inbox, and is looked at again
        except Exception as exc:  # it would come again and again, and fail each time
            log.exception("the job cannot be admitted")
            reason = f"{type(exc).__name__}: {exc}"[:200]
            return self._refuse(job, NotAdmitted("gridq could not split this graph", {"reason": reason}))
        return queue_names.PURE in split.needs

    def work(self) -> None:
        """Without Celery: admit what stands in the inbox, then run pure stages."""
        if self._admits.acquire(blocking=False):  # one thread of several
            try:
                inbox = self.scripts.keys("inbox")
                waiting: list[bytes] = self.scripts.client.zrange(inbox, 0, ADMITTED - 1)  # type: ignore[assignment]
                for job in waiting:
                    self.admit(job.decode())
            finally:
                self._admits.release()
        self.session.work()

    def _refuse(self, job: str, error: GridError) -> bool:
        """End a job that stands in the inbox: what another router has admitted meanwhile goes on."""
        ended = self.scripts.stop(job, "failed", error.to_json(), inbox_only=True)
        if ended in ("plain", "celery"):
            narration.tell("job refused", code=error.code)
        if ended == "celery":
            answers.write(self.app, self.scripts, job)
        return False


def build(app: Celery, concurrency: int, hostname: str = "") -> Router:
    """A router that is not started yet; `hostname` is its Celery name. BrokerError: the server cannot be
    used.
    """
    # Only here: every worker of the app imports this module, and few are routers.
    from gridq.limits.enforcement import Limiting
    from gridq.router.governor.governor import Governor
    from gridq.router.sweep import Sweeper
    from gridq.submission.admission import Admission

    config = settings()
    client = connect(name="gridq-router")
    await_server(client, away=AWAY if parent_watch.supervised() else 0.0)
    if shortcoming := check_kept(client):
        log.warning(shortcoming)
    scripts = Scripts(client, config)
    name = f"{machine_id(config.home)}.router-{os.getpid()}"
    worker = hostname or f"router@{name.partition('.')[0]}"
    session = Session(
        scripts,
        config,
        seat=name,
        host=f"{socket.gethostname()}:{os.getpid()}",
        concurrency=concurrency,
        queues=[queue_names.PURE],
        runner=stages.run_builtin,
        worker=worker,
        monitors=Monitors(app, scripts, worker, router=True),
        record_ttl=RECORD_TTL,
        on_end=partial(answers.write, app, scripts),
        on_gone=partial(wake_ups.declare, app, client, scripts.keys),
    )
    admission = Admission(scripts, config, load(config.profiles))
    sweeper = Sweeper(scripts, config, partial(answers.write, app, scripts))
    router = Router(app, scripts, admission, session, sweeper, Governor(scripts), Limiting(scripts, config))
    own = [scripts.keys.queue(queue) for queue in (queue_names.seat_queue(name), queue_names.ROUTER)]
    session.watchdog = Watchdog(
        concurrency,
        config.watchdog,
        waits=lambda: any(client.llen(queue) for queue in own),
        work=router.work,
        reconnect=hang_up,
        give_up=router.ending.stuck,
    )
    return router


_router: list[Router] = []


def current() -> Router | None:
    """This process's router, if it is one."""
    return _router[0] if _router else None


def start(app: Celery, concurrency: int, hostname: str = "") -> Router:
    """Start this process's router: go live, declare the wake-ups, sweep."""
    router = build(app, concurrency, hostname)
    router.ending.starting()
    router.scripts.adopt()  # before anything is written
    router.limiting.start()  # first: with a wrong quotas file it is no router
    wake_ups.declare(app, router.scripts.client, router.scripts.keys)
    revoke_cancels(router.scripts, partial(answers.write, app, router.scripts))
    router.session.start()
    router.sweeper.start()
    router.governor.start()
    executor.attach(router.session)
    _router[:] = [router]
    return router


def stop() -> None:
    """Stop this process's router, if it is one."""
    if _router:
        router = _router.pop()
        executor.attach(None)
        router.limiting.stop()
        router.governor.stop()
        router.sweeper.stop()
        router.session.stop()


@signals.celeryd_after_setup.connect  # type: ignore[untyped-decorator]
def _after_setup(instance: Any = None, **_: Any) -> None:
    """Become a router where the worker consumes the router's queue."""
    app = instance.app
    if app.main != "gridq" or queue_names.ROUTER not in app.amqp.queues.consume_from:
        return
    parent_watch.watch()
    with startup_errors.told():
        router = start(app, instance.concurrency, instance.hostname)
    app.amqp.queues.select_add(queue_names.seat_queue(router.session.seat))
    app.amqp.queues.select_add(queue_names.PURE)


@signals.worker_ready.connect  # type: ignore[untyped-decorator]
def _ready(**_: Any) -> None:
    if _router:
        _router[0].ending.heed()


@signals.worker_shutting_down.connect  # type: ignore[untyped-decorator]
def _shutting_down(**_: Any) -> None:
    if _router:
        _router[0].ending.signalled()


@signals.worker_shutdown.connect  # type: ignore[untyped-decorator]
def _shutdown(**_: Any) -> None:
    stop()
