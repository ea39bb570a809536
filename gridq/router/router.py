"""The router: admits what is in the inbox, runs built-in pure stages, sweeps, ranks seats, enforces quotas.

`celery -A gridq.app worker -Q gridq:router` is a router; any number may run side by side.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from celery import Celery
from redis.exceptions import RedisError, ResponseError

from gridq import stages
from gridq.config.machine_id import get_machine_id
from gridq.config.settings import settings
from gridq.errors import GridError, GridFull, NoLiveSeat, NotAdmitted, SchemaMismatch
from gridq.execution.session import Session
from gridq.execution.shutdown import Shutdown
from gridq.execution.tasks import run_stage
from gridq.jobs.record import JobOptions, parse_options
from gridq.limits.quotas_loader import QuotasEnforcer
from gridq.messaging import answers, wake_ups
from gridq.messaging.monitor_events import Monitors
from gridq.messaging.router_request import install_revoke
from gridq.messaging.transport import reconnect_consumer
from gridq.process import parent_watch
from gridq.process.watchdog import Watchdog
from gridq.profiles.profile import load_profiles
from gridq.protocol import queue_names
from gridq.router.governor.governor import Governor
from gridq.router.sweep import Sweeper
from gridq.seats.served_queues import read_served_queues
from gridq.store import values
from gridq.store.capacity import check_persistence
from gridq.store.connection import connect, now_ms
from gridq.store.readiness import AWAY_SECONDS, wait_for_server
from gridq.store.scripts import Scripts
from gridq.submission.admission import Admission
from gridq.submission.request import JobRequest
from gridq.submission.seat_wait import limit_wait
from gridq.tasks import run_graph
from gridq.telemetry import narration

log = logging.getLogger(__name__)

INBOX_BATCH = 100
"""The jobs that a router takes from the inbox at once if no message tells it of them."""

RETRY_MS = 400
"""Milliseconds after which a job that waits for a seat is tried again, by the next sweep."""

SEAT_RECORD_TTL_SECONDS = 3600.0
"""A router's seat has a new name at each start: its record need not live long."""


class Router:
    """One router process, live from `start` to `stop`. `hostname` is its Celery name.

    BrokerError: the server cannot be used.
    """

    def __init__(self, app: Celery, concurrency: int, hostname: str = "") -> None:
        config = settings()
        client = connect(name="gridq-router")
        wait_for_server(client, away=AWAY_SECONDS if parent_watch.is_supervised() else 0.0)
        if shortcoming := check_persistence(client):
            log.warning(shortcoming)
        self.app = app
        self.config = config
        self.scripts = Scripts(client, config)
        publish_answer = partial(answers.publish_answer, app, self.scripts)
        name = f"{get_machine_id(config.home)}.router-{os.getpid()}"
        worker = hostname or f"router@{name.partition('.')[0]}"
        self.session = Session(
            self.scripts,
            config,
            seat=name,
            host=f"{socket.gethostname()}:{os.getpid()}",
            concurrency=concurrency,
            queues=[queue_names.PURE],
            runner=stages.run_builtin,
            worker=worker,
            monitors=Monitors(app, self.scripts, worker, router=True),
            record_ttl=SEAT_RECORD_TTL_SECONDS,
            on_end=publish_answer,
            on_gone=self._write_templates,
            on_renewed=self._check_celery,
        )
        self.admission = Admission(self.scripts, config, load_profiles(config.profiles))
        self.sweeper = Sweeper(self.scripts, config, publish_answer)
        self.governor = Governor(self.scripts)
        self.limiting = QuotasEnforcer(self.scripts, config)
        self.shutdown = Shutdown(self.session)
        own = [
            self.scripts.keys.queue(queue)
            for queue in (queue_names.make_seat_queue(name), queue_names.ROUTER)
        ]
        self.watchdog = Watchdog(
            concurrency,
            config.watchdog,
            message_waits=lambda: any(client.llen(queue) for queue in own),
            work=self.work,
            reconnect=reconnect_consumer,
            give_up=self.shutdown.end_without_celery,
        )
        self._publish_answer = publish_answer
        self._admits = threading.Lock()
        self._choosing = threading.Lock()
        self._being_admitted: set[str] = set()
        """The sweep sends another message for a job that takes long: a second thread need not begin it."""

    def start(self) -> None:
        """Go live: enforce the quotas, write the wake-up templates, sweep, rank, answer Celery's tasks."""
        self.shutdown.catch_early_signals()
        self.scripts.adopt()  # before anything is written
        self.limiting.start()  # first: with a wrong quotas file it is no router
        self._write_templates()
        install_revoke(self.scripts, self._publish_answer)
        self.session.start()
        self.sweeper.start()
        self.governor.start()
        run_graph.admit = self.answer_submission
        run_stage.answer = self.answer_wake_up

    def stop(self) -> None:
        run_graph.admit = run_stage.answer = None
        self.limiting.stop()
        self.governor.stop()
        self.sweeper.stop()
        self.session.stop()

    def _write_templates(self) -> None:
        wake_ups.write_templates(self.app, self.scripts.client, self.scripts.keys)

    def _check_celery(self) -> None:
        self.watchdog.check()

    # -- Celery's messages

    def answer_submission(self, job: str) -> None:
        """Admit a job, and run a pure stage that it makes ready at once."""
        with self.watchdog.handling_message():
            if self.admit(job):
                self.session.work()

    def answer_wake_up(self) -> Callable[[], None]:
        """Begin to run pure stages. Return the rest, for a slot's thread."""
        return self.watchdog.handling_message()(self.session.begin_work())

    # -- admission

    def admit(self, job: str) -> bool:
        """Admit a job of the inbox, or end it with its error. Return whether it has a pure stage to run.

        A job that another thread admits is left to that thread.
        """
        with self._choosing:
            if job in self._being_admitted:
                return False
            self._being_admitted.add(job)
        try:
            return self._admit_or_end(job)
        finally:
            self._being_admitted.discard(job)

    def _admit_or_end(self, job: str) -> bool:
        keys = self.scripts.keys
        fields: list[Any] = self.scripts.client.hmget(keys("submitted", job), "graph", "options", "celery")
        graph, options, celery = fields
        if graph is None:  # admitted, cancelled or ended before: one wake-up too many
            return False
        with narration.log_context(job=job):
            return self._admit(job, graph, options or b"{}", celery=celery is not None)

    def _admit(self, job: str, graph: bytes, about: bytes, *, celery: bool) -> bool:
        try:
            options = parse_options(json.loads(about))
            text = values.read(self.scripts.client, self.scripts.keys, graph)
            # The inbox holds the input.
            request = JobRequest(job, text, b"", options, celery=celery, queued=True)
            return self.admission.admit(request).needs_router
        except (GridFull, SchemaMismatch):
            return False  # it was accepted when there was room, and waits in the inbox
        except NoLiveSeat as exc:
            return False if self._keep_waiting(job, exc, options) else self._refuse(job, exc)
        except GridError as exc:
            return self._refuse(job, exc)
        except (RedisError, OSError):
            raise  # it stays in the inbox, and is tried again
        except Exception as exc:  # it would be tried again and again, and fail each time
            log.exception("the job cannot be admitted")
            reason = f"{type(exc).__name__}: {exc}"[:200]
            return self._refuse(job, NotAdmitted("gridq could not compile this graph", {"reason": reason}))

    def _keep_waiting(self, job: str, error: NoLiveSeat, options: JobOptions) -> bool:
        """Return whether a job waits in the inbox for a seat that was there until lately. The next sweep
        brings it here again.
        """
        client, keys = self.scripts.client, self.scripts.keys
        if not error.awaited or not read_served_queues(client, keys).may_be_back(error.awaited):
            return False
        submitted_at: Any = client.hget(keys("submitted", job), "submitted_at")
        now = now_ms(client)
        wait_ms = limit_wait(self.config.admission_wait, options) * 1000
        if submitted_at is None or now - int(submitted_at) >= wait_ms:
            return False
        client.zadd(keys("inbox"), {job: now + RETRY_MS}, xx=True)
        return True

    def work(self) -> None:
        """Do without Celery what its messages ask for: admit what is in the inbox, then run pure stages."""
        if self._admits.acquire(blocking=False):  # one thread of several
            try:
                inbox = self.scripts.keys("inbox")
                waiting: list[bytes] = self.scripts.client.zrange(inbox, 0, INBOX_BATCH - 1)  # type: ignore[assignment]
                for job in waiting:
                    try:
                        self.admit(job.decode())
                    except ResponseError as exc:  # its keys are damaged: those behind it must not wait
                        log.error("the job %s cannot be admitted: %s", job.decode(), exc)
            finally:
                self._admits.release()
        self.session.work()

    def _refuse(self, job: str, error: GridError) -> bool:
        """End a job that is in the inbox. One that another router has admitted meanwhile goes on."""
        ended = self.scripts.stop(job, "failed", error.to_json(), inbox_only=True)
        if ended in ("plain", "celery"):
            narration.narrate("job refused", code=error.code)
        if ended == "celery":
            self._publish_answer(job)
        return False
