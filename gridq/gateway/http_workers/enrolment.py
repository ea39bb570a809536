"""Workers that come over HTTP, as noether-grid's do: they enrol, tell each few seconds that they live, and
are asked at their own `/execute`. `gridq.gateway.http_workers.hosting` makes seats of them.

What a worker says of its budget and its load is what it offers, never a ledger: the grid keeps that itself.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from redis import Redis
from redis.client import Pipeline

from gridq.errors import WorkersFull
from gridq.protocol import queue_names
from gridq.protocol.models import Limit
from gridq.seats.registry import HTTP_MACHINE
from gridq.store.connection import now_ms
from gridq.store.keys import Keys

log = logging.getLogger(__name__)

MAX_MISSED_HEARTBEATS = 3
"""Heartbeats after which a silent worker is forgotten."""

MIN_LEASE_MS = 5_000
"""For how long a worker is kept at least, however often it means to tell that it lives."""

MAX_WORKERS = 64
"""Workers that may be enrolled at once. One gateway may come to serve them all, each with four threads and as
many connections to the server, which has a bound of its own for these.
"""

EXAMPLE: dict[str, Any] = {
    "worker_id": "alice-macbook",
    "url": "http://alice-macbook.corp.internal:8080",
    "capabilities": [
        {
            "kind": "llm",
            "provider": "anthropic",
            "model": "claude-opus-4-6",
            "auth_via": "cli",
            "budget_monthly_cents": 20000,
            "budget_remaining_cents": 14200,
            "rate_limit_rpm": 60,
        }
    ],
    "noether_version": "0.3.2",
    "heartbeat_interval_secs": 10,
}


class OfferedModel(BaseModel):
    """A model that a worker offers. A budget of 0 a month is none set: it is what its programs say where
    nobody set one.
    """

    model_config = ConfigDict(extra="ignore", strict=True)

    kind: Literal["llm"] = "llm"
    provider: str = Field(max_length=64)
    model: str = Field(min_length=1, max_length=128)
    auth_via: str = Field("api_key", max_length=32)
    budget_monthly_cents: int = Field(0, ge=0, le=10**11)
    budget_remaining_cents: int = Field(0, ge=0, le=10**11)
    rate_limit_rpm: int | None = Field(None, ge=0, le=100_000)


class WorkerAdvertisement(BaseModel):
    """What a worker says of itself when it comes."""

    model_config = ConfigDict(extra="ignore", strict=True, json_schema_extra={"examples": [EXAMPLE]})

    worker_id: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    url: str = Field(
        pattern=r"^https?://[^/@\s?#]+(/[^@\s?#]*)?$",
        max_length=500,
        description="its own address, as the gateway reaches it; graphs are posted to /execute there",
    )
    capabilities: list[OfferedModel] = Field(default_factory=list, max_length=100)
    noether_version: str = Field("", max_length=64)
    heartbeat_interval_secs: int = Field(10, ge=1, le=3600)


class Heartbeat(BaseModel):
    """That a worker lives; with capabilities also what it offers from now on."""

    model_config = ConfigDict(
        extra="ignore",
        strict=True,
        json_schema_extra={"examples": [{"worker_id": "alice-macbook", "in_flight_jobs": 1}]},
    )

    worker_id: str | None = Field(None, max_length=128, description="the path's id counts")
    capabilities: list[OfferedModel] = Field(default_factory=list, max_length=100)
    in_flight_jobs: int = Field(0, ge=0, le=1_000_000)


class EnrolmentResult(BaseModel):
    """A worker that was taken."""

    worker_id: str
    seat: str = Field(description="what the grid calls it")


@dataclass(frozen=True, slots=True)
class EnrolledWorker:
    """One enrolled worker, with the text by which a change of what it offers is seen."""

    about: WorkerAdvertisement
    text: str

    @property
    def seat(self) -> str:
        """The grid's name of it."""
        return seat_of(self.about.worker_id)

    @property
    def queues(self) -> list[str]:
        """The capabilities that it serves: its models by their own names, no family and no `any`, for it
        knows the graphs' stages and not the requests of the model APIs.
        """
        return list(
            dict.fromkeys(queue_names.make_queue_name("llm", offered.model) for offered in self.about.capabilities)
        )

    @property
    def limits(self) -> tuple[Limit, ...]:
        """What it may spend in a month, where a budget is set."""
        cents = sum(offered.budget_monthly_cents for offered in self.about.capabilities)
        return (Limit(resource="money", window="month", amount=cents * 10_000),) if cents else ()

    @property
    def per_minute(self) -> int | None:
        """Requests in any minute: the least that any of its models allows."""
        rates = [offered.rate_limit_rpm for offered in self.about.capabilities]
        return min((rate for rate in rates if rate is not None), default=None)


def seat_of(worker_id: str) -> str:
    """The seat of a worker over HTTP."""
    return f"{HTTP_MACHINE}.{worker_id}"


def enrol(client: Redis, keys: Keys, about: WorkerAdvertisement) -> None:
    """Keep what a worker says, for BEATS of its heartbeats; the same again replaces it. WorkersFull."""

    def once(pipe: Pipeline) -> None:
        others: Any = pipe.zrangebyscore(keys("workers"), f"({now}", "+inf")
        if len(set(others) - {about.worker_id.encode()}) >= MAX_WORKERS:
            raise WorkersFull(
                "As many workers are enrolled as a grid takes",
                {
                    "path": "worker_id",
                    "limit": MAX_WORKERS,
                    "bottleneck": f"the {MAX_WORKERS} workers that a grid takes over HTTP",
                    "fix": "let one go, or run a gridq worker beside the models",
                },
            )
        pipe.multi()
        _store(pipe, keys, about, now)

    now = now_ms(client)
    client.transaction(once, keys("workers"))


def _store(pipe: Pipeline, keys: Keys, about: WorkerAdvertisement, now: int) -> None:
    life = max(about.heartbeat_interval_secs * MAX_MISSED_HEARTBEATS * 1000, MIN_LEASE_MS)
    pipe.set(keys("worker", about.worker_id), about.model_dump_json(), px=life)
    pipe.zadd(keys("workers"), {about.worker_id: now + life})
    pipe.pexpire(keys("workers"), life, gt=True)
    pipe.pexpire(keys("workers"), life, nx=True)


def record_heartbeat(client: Redis, keys: Keys, worker_id: str, heartbeat: Heartbeat) -> bool:
    """Keep a worker for longer; False where it is not known (any more)."""

    def once(pipe: Pipeline) -> None:
        text: Any = pipe.get(keys("worker", worker_id))
        pipe.multi()
        if text is None:
            return
        about = WorkerAdvertisement.model_validate_json(text)
        if heartbeat.capabilities:
            about = about.model_copy(update={"capabilities": heartbeat.capabilities})
        _store(pipe, keys, about, now)

    now = now_ms(client)
    # Again where it enrolled anew in between: an old word must not take the place of a new one.
    done: Any = client.transaction(once, keys("worker", worker_id))
    return bool(done)


def remove(client: Redis, keys: Keys, worker_id: str) -> bool:
    """Forget a worker; False where it was not known."""
    both = client.pipeline(transaction=True)
    both.delete(keys("worker", worker_id))
    both.zrem(keys("workers"), worker_id)
    return bool(both.execute()[0])


def read_workers(client: Redis, keys: Keys) -> dict[str, EnrolledWorker]:
    """Every enrolled worker, by its id. What is over is taken out of the list."""
    client.zremrangebyscore(keys("workers"), "-inf", now_ms(client))
    ids: Any = client.zrange(keys("workers"), 0, -1)
    names = [name.decode() for name in ids]
    texts: Any = client.mget([keys("worker", name) for name in names]) if names else []
    found = {}
    for name, text in zip(names, texts, strict=True):
        if text is None:
            continue
        try:
            found[name] = EnrolledWorker(WorkerAdvertisement.model_validate_json(text), text.decode())
        except ValidationError:  # of a gateway of another version
            log.warning("the worker %s was enrolled by another version", name)
    return found


def describe_capability(about: WorkerAdvertisement) -> dict[str, Any]:
    """What the seat of a worker advertises."""
    host = about.url.partition("://")[2].partition("/")[0]
    offered = [json.loads(each.model_dump_json()) for each in about.capabilities]
    return {
        "host": host,
        "models": [{"name": each.model} for each in about.capabilities],
        "url": about.url,
        "worker_id": about.worker_id,
        "offered": offered,
    }
