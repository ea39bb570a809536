"""Run a grid in this process: real server, scripts, sessions and sweeper. Polling threads replace Celery's
wake-ups.

Tests of the Celery integration start real workers instead.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import redis

from gridq import stages
from gridq.client import Client
from gridq.config.settings import Settings
from gridq.execution.attempt import Runner
from gridq.execution.session import Session
from gridq.profiles.profile import Profile, StageContext
from gridq.protocol import queue_names
from gridq.protocol.models import Advertisement, Json, StageCall
from gridq.router.sweep import Sweeper
from gridq.seats import registry
from gridq.store.scripts import Scripts
from tests.fakes.bench_profile import BenchProfile

POLL_SECONDS = 0.004
"""How often one of a seat's free slots looks for work."""

MAX_POLL_SECONDS = 0.04


class BenchRunner:
    """Runs built-in stages and those of the bench profile."""

    def __init__(self, profile: Profile | None = None) -> None:
        self.profile = profile or BenchProfile()

    def __call__(self, stage: StageCall, value: Json, context: StageContext) -> Json:
        if stage.implementation.startswith(("builtin:", "python:")):
            return stages.run_builtin(stage, value, context)
        return self.profile.run(stage, value, context)


class LocalGrid:
    """Seats (name → queues), each with threads that poll for work, and one sweeper."""

    def __init__(
        self,
        client: redis.Redis,
        config: Settings,
        seats: dict[str, Sequence[str]],
        *,
        concurrency: int = 2,
        runner: Runner | None = None,
    ) -> None:
        self.scripts = Scripts(client, config)
        self.config = config
        self.client = Client(config.broker_url.get_secret_value(), config=config)
        self.sweeper = Sweeper(self.scripts, config, lambda job: None)
        self.sessions = {
            name: Session(
                self.scripts,
                config,
                seat=name,
                host="here",
                concurrency=concurrency,
                queues=list(serves),
                runner=runner or BenchRunner(),
            )
            for name, serves in seats.items()
        }
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._slot, args=(session, number, concurrency), daemon=True)
            for session in self.sessions.values()
            for number in range(concurrency)
        ]

    def _slot(self, session: Session, number: int, concurrency: int) -> None:
        """Look for work in turn with the seat's other slots: if each looked all the time, a grid without work
        would keep a processor busy.
        """
        self._stop.wait(number * POLL_SECONDS)
        while not self._stop.is_set():
            session.work()
            self._stop.wait(min(concurrency * POLL_SECONDS, MAX_POLL_SECONDS))

    def __enter__(self) -> LocalGrid:
        for session in self.sessions.values():
            session.start()
        self.sweeper.start()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(10)
        for session in self.sessions.values():
            session.stop(1)
        self.sweeper.stop()
        self.client.close()


DEFAULT_SEATS: dict[str, Sequence[str]] = {
    "m.router": [queue_names.PURE],
    "m.local": [queue_names.LOCAL],
    "m.bench": ["bench:any"],
}


@contextmanager
def advertised(scripts: Scripts, ad: Advertisement) -> Iterator[None]:
    """Keep the seat of an advertisement live, as its worker would. It takes no stage."""
    session = Session(
        scripts, scripts.config, seat=ad.seat, host="h", concurrency=ad.concurrency, queues=ad.queues,
        runner=BenchRunner(),
    )  # fmt: skip
    registry.advertise(scripts.client, scripts.keys, ad, 60)
    session.start()
    try:
        yield
    finally:
        session.stop(0)
        registry.withdraw(scripts.client, scripts.keys, ad.seat)
