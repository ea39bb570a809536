"""Flower adapted to the grid: its routes, its queue lengths and its workers.

Flower has no plug-ins, but it builds its application from the list `flower.urls.handlers` and its state from
`flower.events.EventsState`. `adapt_flower` changes both before that, so `gridq flower` and Celery's own
`celery -A gridq.app flower --conf …/flowerconfig.py` behave the same.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import flower.app
import flower.events
import flower.urls
import flower.views
import flower.views.tasks
from celery.events import EventReceiver
from celery.events.state import Task, Worker
from flower import command
from flower.api import tasks as task_api
from flower.api import workers as worker_api
from flower.app import Flower
from flower.views import monitor as monitor_views
from redis.exceptions import RedisError
from tornado.options import Error as OptionError
from tornado.web import HTTPError, authenticated

from gridq.app import app
from gridq.config.settings import settings
from gridq.errors import ConfigError
from gridq.protocol import queue_names
from gridq.store.connection import connect_async, redact_url, translate_error
from gridq.store.keys import Keys
from gridq.telemetry import logs

if TYPE_CHECKING:
    from gridq.config.settings import Settings

log = logging.getLogger(__name__)

FORGET_SECONDS = 15
"""The time for which a worker that has ended is shown."""

QUEUES_TIMEOUT_SECONDS = 2.0
"""The longest time to read the queues."""


def adapt_flower() -> None:
    """Change Flower in this process. A second call changes nothing more."""
    replacements = {
        monitor_views.Metrics: Metrics,
        worker_api.ListWorkers: LiveWorkers,
        **dict.fromkeys(_FORBIDDEN_HANDLERS, Forbidden),
    }
    flower.urls.handlers[:] = [
        (route[0], replacements.get(route[1], route[1]), *route[2:]) if isinstance(route, tuple) else route
        for route in flower.urls.handlers
    ]
    flower.views.Broker = PendingWork
    flower.views.tasks.TASK_COLUMNS.update(args="Capability", kwargs="Stage", wait="Wait")
    flower.events.EventsState = GridState
    flower.app.Events = GridEvents
    Flower.broker_uri = property(lambda _: redact_url(settings().broker_url.get_secret_value()))


def serve(
    arguments: list[str], *, control: bool, on_listening: Callable[[str, int], None], conf: str
) -> None:
    """Run Flower in this process until SIGTERM or Ctrl-C (KeyboardInterrupt).

    `arguments` are Flower's own, such as `--port=5555`, and override its settings in the file `conf`.
    `on_listening(scheme, port)` is called once the port is open. ConfigError: a FLOWER_… variable or the
    address cannot be used.
    """
    try:
        command.apply_env_options()
        command.apply_options(
            "gridq flower", [f"--conf={conf}", "--logging=warning", f"--read-only={not control}", *arguments]
        )
    except (ValueError, OptionError) as exc:
        raise ConfigError(
            "Flower cannot use a FLOWER_… variable", {"reason": str(exc), "fix": "correct it or unset it"}
        ) from None
    command.extract_settings()
    command.setup_logging()
    logs.setup()  # last: Flower's own replaces the handlers
    server = Flower(capp=app, options=command.options, **flower.urls.settings)
    loop = server.io_loop
    signal.signal(signal.SIGTERM, lambda *_: loop.add_callback_from_signal(loop.stop))
    try:
        port = server.start_http_server()
    except OSError as exc:
        raise ConfigError(
            f"Flower cannot listen on {command.options.address}:{command.options.port}",
            {"reason": exc.strerror or str(exc), "fix": "name another --address or --port"},
        ) from None
    on_listening("https" if server.ssl_options else "http", port)
    # Flower's own timer would enable the workers' events only after five seconds.
    loop.add_callback(server.events.on_enable_events)
    try:
        server.start()
    finally:
        server.stop()


class Metrics(monitor_views.Metrics):  # type: ignore[misc]
    """Flower's metrics, behind the password: they name every graph and worker."""

    @authenticated
    async def get(self) -> None:
        await super().get()


class Forbidden(task_api.BaseTaskHandler):  # type: ignore[misc]
    """Refuses to submit jobs or show answers in Flower: an answer may repeat a prompt."""

    @authenticated
    async def get(self, _: str) -> None:
        raise HTTPError(403, "Flower neither shows answers nor takes jobs: use gridq run or a client")

    post = get


_FORBIDDEN_HANDLERS = (
    task_api.TaskApply,
    task_api.TaskAsyncApply,
    task_api.TaskSend,
    task_api.TaskResult,
    task_api.TaskAbort,
)


class LiveWorkers(worker_api.ListWorkers):  # type: ignore[misc]
    """Flower's list of workers, without those that have ended and with those that started after Flower."""

    @authenticated
    async def get(self) -> None:
        state, inspector = self.application.events.state, self.application.inspector
        forget_ended(state, inspector.workers)
        alive = {name for name, worker in state.workers.items() if worker.alive}
        if alive - inspector.workers.keys() and not self.get_argument("status", default=False, type=bool):
            await self.application.update_workers()
        await super().get()


def forget_ended(state: Any, inspected: dict[str, Any]) -> None:
    """Drop workers that ended FORGET_SECONDS ago from Flower's state and from what it has `inspected`."""
    cutoff = time.time() - FORGET_SECONDS
    for name in {*state.workers, *state.counter, *inspected}:
        worker = state.workers.get(name)
        if worker is None:  # it has only answered an inspection
            seen = inspected.get(name, {}).get("timestamp", 0)
        else:  # after its last event it has no heartbeats; known from others only, not even a time
            seen = worker.heartbeats[-1] if worker.heartbeats else getattr(worker, "timestamp", 0)
        if seen < cutoff:
            state.workers.pop(name, None)
            state.counter.pop(name, None)
            inspected.pop(name, None)


class GridEvents(flower.events.Events):  # type: ignore[misc]
    """Flower's events, received again within a second of the server's return. Flower's own pause doubles with
    each try, so it would miss events for as long again as the server was away.
    """

    def run(self) -> None:
        while True:
            try:
                with self.capp.connection() as connection:
                    receiver = EventReceiver(connection, handlers={"*": self.on_event}, app=self.capp)
                    receiver.capture(limit=None, timeout=None, wakeup=True)
            except Exception as exc:  # as in Flower: whatever it was, it must not end the thread
                log.warning("Flower receives no events: %s", translate_error(exc))
                time.sleep(1)


class GridState(flower.events.EventsState):  # type: ignore[misc]
    """Flower's state, which counts each start once. The recording of a stage repeats its start, for a monitor
    that has missed it: counted too, it would double the number of stages that a worker has processed.
    """

    def event(self, event: dict[str, Any]) -> None:
        field = _START_FIELDS.get(event["type"], "")
        task = self.tasks.get(event.get("uuid")) if field else None
        if task is None or getattr(task, field) != event["timestamp"]:
            super().event(event)


_START_FIELDS = {"task-received": "received", "task-started": "started"}
"""The event of a start → the task's field that holds its time."""


class GridWorker(Worker):  # type: ignore[misc]
    """A worker that is alive by its own heartbeats alone. Celery counts task events too, so events about a
    dead worker's stages would bring it back to life.
    """

    def _create_event_handler(self) -> Any:
        handle = super()._create_event_handler()

        def event(kind: str | None, *args: Any, **named: Any) -> None:
            if kind is not None:
                handle(kind, *args, **named)

        return event


class GridTask(Task):  # type: ignore[misc]
    """A stage or a job, with the time that it waited."""

    _fields = (*Task._fields, "wait")

    @property
    def wait(self) -> float | None:
        """Seconds from ready to the last start; None while it has not started."""
        return _wait_seconds(self)


GridState.Task, GridState.Worker = GridTask, GridWorker


class FormattedTask(Task):  # type: ignore[misc]
    """A task as Flower's pages show it."""

    _fields = GridTask._fields

    @property
    def wait(self) -> str | None:
        seconds = _wait_seconds(self)
        if seconds is None:
            return None
        return (
            f"{seconds * 1000:.0f}\N{NO-BREAK SPACE}ms"
            if seconds < 1
            else f"{seconds:.2f}\N{NO-BREAK SPACE}s"
        )


def _wait_seconds(task: Any) -> float | None:
    if not task.received or not task.started:
        return None
    return round(max(0.0, float(task.started) - float(task.received)), 3)


def format_task(task: Any) -> Any:
    """Format a task for Flower's pages. Flower calls this hook with a copy of the task."""
    task.__class__ = FormattedTask
    if task.root_id == task.uuid:  # a job: it has its agent where a stage has its capability
        task.args = f"agent {task.args}"
    return task


class PendingWork:
    """The queue lengths that Flower shows, in place of its own, which count the messages of Celery's lists.

    Those are wake-ups; the work itself is in the pending sets. A queue's length is the number of stages that
    wait in it, for `gridq:router` the number of jobs to admit. Its consumers are the slots that serve it.
    Flower's arguments describe Celery's connection and are not needed.
    """

    def __init__(self, *_: Any, **__: Any) -> None:
        self.config: Settings = settings()

    async def queues(self, _: Iterable[str] = ()) -> list[dict[str, Any]]:
        """Return every queue that has slots or work, by name. HTTPError 503: the server cannot be used."""
        keys = Keys(self.config.prefix)
        client = connect_async(
            self.config.broker_url.get_secret_value(),
            name="gridq-flower",
            timeout=QUEUES_TIMEOUT_SECONDS,
            retry=False,
        )
        try:
            pipe = client.pipeline(transaction=False)
            pipe.hgetall(keys("concurrency"))
            pipe.smembers(keys("queues"))
            pipe.zcard(keys("inbox"))
            concurrency, pending, inbox = await pipe.execute()
            names = sorted(name.decode() for name in {*concurrency, *pending})
            pipe = client.pipeline(transaction=False)
            for name in names:
                pipe.hvals(keys("classes", name))
            waiting = [sum(map(int, counts)) for counts in await pipe.execute()]
        except (RedisError, OSError) as exc:
            raise HTTPError(503, str(translate_error(exc))) from exc
        finally:
            await client.aclose()
        listed = [
            {**_describe_queue(name, count), "consumers": int(concurrency.get(name.encode(), 0))}
            for name, count in zip(names, waiting, strict=True)
        ]
        routers = int(concurrency.get(queue_names.PURE.encode(), 0))
        return [*listed, {**_describe_queue(queue_names.ROUTER, inbox), "consumers": routers}]


def _describe_queue(name: str, waiting: int) -> dict[str, Any]:
    return {"name": name, "messages": waiting, "messages_ready": waiting}
