"""The heartbeat: about every ten seconds the worker advertises its seat again.

Nothing slow delays it: the profile's metrics are sampled on another thread, and a beat publishes the last
sample. It does not decide whether the seat is live: the session's lease does.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Collection

from pydantic import BaseModel
from redis import Redis
from redis.exceptions import RedisError

from gridq.config.settings import Settings
from gridq.execution.session import Session
from gridq.process.periodic import PeriodicThread
from gridq.profiles.metric_keys import MAX_DETAILS_CHARACTERS
from gridq.profiles.profile import Profile
from gridq.protocol.models import Advertisement, Json
from gridq.seats import registry
from gridq.store.keys import Keys

log = logging.getLogger(__name__)


class Heartbeat:
    """Advertises one seat, and the user's stages if the seat runs them, until `stop`."""

    def __init__(
        self,
        client: Redis,
        config: Settings,
        session: Session,
        *,
        machine: str,
        kind: str,
        capability: dict[str, Json],
        descriptor: BaseModel | None = None,
        profile: Profile | None = None,
        last_resort: Collection[str] = (),
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
        self.descriptor = descriptor
        """The capability as the profile's own model."""
        self.profile = profile
        self.last_resort = list(last_resort)
        self.specs = specs or []
        self.version = version
        self.owner = owner
        self.share = share
        self.whole_budget = whole_budget
        self.timeouts: dict[str, float] = {}
        self._started = self._since = time.time()
        self._state = ""
        self._sample: tuple[dict[str, float], dict[str, Json], str] = ({}, {}, "")
        self._keys = Keys(config.prefix)
        self._sampler = PeriodicThread("sample", config.heartbeat / 2, self._sample_and_beat)
        self._is_refreshing = False
        self._repeats = [PeriodicThread("heartbeat", config.heartbeat, self.beat)]
        if profile is not None:
            self._repeats.append(self._sampler)

    def start(self) -> None:
        """Advertise now, then with each beat."""
        self.beat()
        for repeat in self._repeats:
            repeat.start()

    def stop(self) -> None:
        """Stop, and withdraw the advertisement."""
        for repeat in self._repeats:
            repeat.stop()
        try:
            registry.withdraw(self.client, self._keys, self.session.seat)
        except RedisError as exc:
            log.warning("the advertisement could not be withdrawn: %s", exc)

    def build_advertisement(self) -> Advertisement:
        """Return the seat's advertisement as of now."""
        metrics, details, fault = self._sample
        session = self.session
        state, reason = "ready", ""
        since = until = None
        in_cooldown = session.list_model_cooldowns()
        pause = session.unavailable
        if session.draining:
            state, reason = "draining", "the worker is stopping"
        elif pause is not None:
            state, reason, since, until = pause.state, pause.reason, pause.since, pause.until
        elif fault:
            state, reason = "degraded", fault
        elif session.is_shielded:
            reason = "a protected stage runs on it, so it takes nothing else"
        elif session.breaker.half_open_reason:
            reason = f"recovering, one stage at a time, after: {session.breaker.half_open_reason}"
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
            last_resort=self.last_resort,
            capability=self._describe_offer([each.model for each in in_cooldown]),
            models_in_cooldown=in_cooldown,
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
            details=details,
            service=session.running_times.get_service_times(),
            timeouts=self.timeouts,
        )

    def change_capability(self, descriptor: BaseModel) -> None:
        """Advertise `descriptor` from the next beat on: what the seat can do has changed."""
        self.descriptor = descriptor
        self.capability = descriptor.model_dump(mode="json")

    def _describe_offer(self, in_cooldown: Collection[str]) -> dict[str, Json]:
        """Return the capability without the models in cooldown; the whole one if nothing is left of it."""
        if not in_cooldown or self.profile is None or self.descriptor is None:
            return self.capability
        left = self.profile.exclude_models(self.descriptor, in_cooldown)
        return self.capability if left is None else left.model_dump(mode="json")

    def publish_stages(self) -> None:
        """Publish the user's stages. This comes before the seat goes live, so that whoever sees it live can
        submit them.
        """
        registry.publish_stages(self.client, self._keys, self.machine, self.specs, self.config.heartbeat)

    def beat(self) -> None:
        """Advertise now."""
        registry.advertise(self.client, self._keys, self.build_advertisement(), self.config.heartbeat)
        self.publish_stages()

    def refresh(self) -> None:
        """Sample the profile and advertise the sample soon."""
        self._is_refreshing = True
        self._sampler.hurry()

    def _sample_and_beat(self) -> None:
        is_refreshing, self._is_refreshing = self._is_refreshing, False
        self._read_sample()
        if is_refreshing or self._sample[1].get("loading"):  # how far that is must not be old
            self.beat()

    def _read_sample(self) -> None:
        assert self.profile is not None
        try:
            details = self.profile.details()
            if len(json.dumps(details)) > MAX_DETAILS_CHARACTERS:
                details = {}
            self._sample = (self.profile.metrics(), details, self.profile.health())
        except Exception as exc:  # a broken profile must not stop the heartbeat
            self._sample = ({}, {}, f"the profile's health check failed: {type(exc).__name__}: {exc}")
