"""The heartbeat: each ten seconds, give or take, the worker says again what its seat is.

Nothing slow stands in its way: what the profile measures is sampled on another thread, and the beat tells the
last sample. Live or dead is not its business (that is the lease's), and it carries no ledger.
"""

from __future__ import annotations

import logging
import time

from redis import Redis
from redis.exceptions import RedisError

from gridq.config.settings import Settings
from gridq.execution.session import Session
from gridq.process.periodic import PeriodicThread
from gridq.profiles.profile import Profile
from gridq.protocol.models import Advertisement, Json
from gridq.seats import registry
from gridq.store.keys import Keys

log = logging.getLogger(__name__)


class Heartbeat:
    """Advertises one seat, and with it the user's stages where the seat runs them, until `stop`."""

    def __init__(
        self,
        client: Redis,
        config: Settings,
        session: Session,
        *,
        machine: str,
        kind: str,
        capability: dict[str, Json],
        profile: Profile | None = None,
        specs: list[dict[str, Json]] | None = None,
        version: str = "",
        owner: str = "",
        share: float | None = None,
        whole_budget: int | None = None,
    ) -> None:
        self.client = client
        self.config = config
        self.session = session
        self.machine = machine
        self.kind = kind
        self.capability = capability
        self.profile = profile
        self.specs = specs or []
        self.version = version
        self.owner = owner
        self.share = share
        self.whole_budget = whole_budget
        self.timeouts: dict[str, float] = {}
        self._started = self._since = time.time()
        self._state = ""
        self._sample: tuple[dict[str, float], str] = ({}, "")
        self._keys = Keys(config.prefix)
        self._repeats = [PeriodicThread("heartbeat", config.heartbeat, self.beat)]
        if profile is not None:
            self._repeats.append(PeriodicThread("sample", config.heartbeat / 2, self._look))

    def start(self) -> None:
        """Advertise at once, then with each beat."""
        self.beat()
        for repeat in self._repeats:
            repeat.start()

    def stop(self) -> None:
        """Stop, and take the advertisement back."""
        for repeat in self._repeats:
            repeat.stop()
        try:
            registry.withdraw(self.client, self._keys, self.session.seat)
        except RedisError as exc:
            log.warning("the advertisement could not be taken back: %s", exc)

    def advertisement(self) -> Advertisement:
        """What this seat is now."""
        metrics, unwell = self._sample
        session = self.session
        state, reason = "ready", ""
        since = until = None
        rest = session.unavailable
        if session.draining:
            state, reason = "draining", "the worker is stopping"
        elif rest is not None:
            state, reason, since, until = rest.state, rest.reason, rest.since, rest.until
        elif unwell:
            state, reason = "degraded", unwell
        elif session.breaker.half_open_reason:
            reason = f"on trial, one stage at a time, after: {session.breaker.half_open_reason}"
        if state != self._state:
            self._state, self._since = state, time.time()
        return Advertisement(
            seat=session.seat,
            machine=self.machine,
            worker=session.worker,
            incarnation=session.incarnation,
            kind=self.kind,
            concurrency=session.concurrency,
            queues=list(session.queues),
            capability=self.capability,
            state=state,
            reason=reason,
            since=self._since if since is None else since,
            until=until,
            version=self.version,
            owner=self.owner,
            share=self.share,
            whole_budget=self.whole_budget,
            lends_to=list(session.terms.lends_to),
            started_at=self._started,
            metrics={"busy": float(session.busy), **metrics},
            service=session.running_times.get_service_times(),
            timeouts=self.timeouts,
        )

    def offer(self) -> None:
        """Offer the user's stages now. A seat does so before it goes live: whoever sees it live, and submits
        one of its stages, is not to be told that there is no such stage.
        """
        registry.publish_stages(self.client, self._keys, self.machine, self.specs, self.config.heartbeat)

    def beat(self) -> None:
        """Advertise now."""
        registry.advertise(self.client, self._keys, self.advertisement(), self.config.heartbeat)
        self.offer()

    def _look(self) -> None:
        assert self.profile is not None
        try:
            self._sample = (self.profile.metrics(), self.profile.health())
        except Exception as exc:  # a profile's fault is told, not spread
            self._sample = ({}, f"its health could not be read: {type(exc).__name__}: {exc}")
