"""A Celery monitor like Flower: Celery's own event receiver, and its state."""

from __future__ import annotations

import threading
from typing import Any, Self

from celery import Celery
from celery.events.receiver import EventReceiver
from celery.events.state import State, Task

from tests.waiting import wait_for


class _Receiver(EventReceiver):  # type: ignore[misc]
    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.ready = threading.Event()

    def on_consume_ready(self, *args: Any, **more: Any) -> None:
        super().on_consume_ready(*args, wakeup=False, **{k: v for k, v in more.items() if k != "wakeup"})
        self.ready.set()


class Monitor:
    """Receives every event of the grid within the `with` block. `enable` makes the workers send them."""

    def __init__(self, app: Celery) -> None:
        self.app = app
        self.state = State()
        self.heard: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        self._connection = self.app.connection_for_read()
        self._receiver = _Receiver(self._connection, handlers={"*": self._hear}, app=self.app)
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()
        assert self._receiver.ready.wait(10)
        # The subscription is active once an event arrives, not once it is sent to the server.
        with self.app.connection_for_write() as connection:
            dispatcher = self.app.events.Dispatcher(connection, hostname="probe")
            wait_for(lambda: dispatcher.send("probe-sent") or self.heard)
        return self

    def __exit__(self, *_: object) -> None:
        self._receiver.should_stop = True
        self._thread.join(10)
        self._connection.close()

    def enable(self) -> None:
        self.app.control.enable_events()

    def task(self, uuid: str, state: str) -> Task:
        """Wait for the task `uuid` to be in `state` and to have a name; return it."""
        return wait_for(
            lambda: self.state.tasks.get(uuid), true=lambda task: task and task.state == state and task.name
        )

    def _listen(self) -> None:
        for _ in self._receiver.consume(limit=None, timeout=None, wakeup=False):
            pass

    def _hear(self, event: dict[str, Any]) -> None:
        self.heard.append(dict(event))
        self.state.event(event)
