"""Workers over HTTP, such as noether-grid's: they enrol, send heartbeats, and run stages at their
`/execute`.

`gridq.gateway.http_workers.hosting` turns them into seats. What a worker reports of its budget and load
describes its offer; the grid keeps the accounts itself.
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
"""The minimum lease of a worker, however short its heartbeat interval."""

MAX_WORKERS = 64
"""Maximum number of enrolled workers. One gateway may have to host all of them, each with four threads and
as many connections to the server, whose number is limited too.
"""

EXAMPLE: dict[str, Any] = {
    "worker_id": "alice-macbook",
    "url": "http://alice-macbook.corp.internal:8080",
    "capabilities": [
        {
            "kind": queue_names.LLM,
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
    """A model that a worker offers. A monthly budget of 0 means no budget, as noether's workers report it."""

    model_config = ConfigDict(extra="ignore", strict=True)

    kind: Literal["llm"] = "llm"
    provider: str = Field(max_length=64, description="Who runs the model, such as `anthropic`.")
    model: str = Field(min_length=1, max_length=128, description="The model's name.")
    auth_via: str = Field(
        "api_key", max_length=32, description="How the worker authenticates with the provider."
    )
    budget_monthly_cents: int = Field(
        0, ge=0, le=10**11, description="What the grid may spend in a month; 0 for no budget."
    )
    budget_remaining_cents: int = Field(
        0, ge=0, le=10**11, description="Ignored: the grid keeps the account itself."
    )
    rate_limit_rpm: int | None = Field(
        None, ge=0, le=100_000, description="Requests a minute; null if there is no limit."
    )


class WorkerAdvertisement(BaseModel):
    """The advertisement that a worker enrols with."""

    model_config = ConfigDict(extra="ignore", strict=True, json_schema_extra={"examples": [EXAMPLE]})

    worker_id: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
        description="The worker's ID, which becomes part of its seat's name.",
    )
    url: str = Field(
        pattern=r"^https?://([^/@\s?#:\[\]]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?(/[^@\s?#]*)?$",
        max_length=500,
        description="The worker's URL as the gateway reaches it. Graphs are posted to `/execute` there.",
    )
    capabilities: list[OfferedModel] = Field(
        default_factory=list, max_length=100, description="The models that it offers."
    )
    noether_version: str = Field("", max_length=64, description="The version of its program.")
    heartbeat_interval_secs: int = Field(
        10, ge=1, le=3600, description="How often it sends a heartbeat, in seconds."
    )


class StoredAdvertisement(WorkerAdvertisement):
    """An advertisement with what the gateway knows of it. `is_local`: the worker enrolled from the gateway's
    own machine, so its URL may lead there.
    """

    is_local: bool = False


class Heartbeat(BaseModel):
    """A sign of life. With `capabilities` it also replaces what the worker offers."""

    model_config = ConfigDict(
        extra="ignore",
        strict=True,
        json_schema_extra={"examples": [{"worker_id": "alice-macbook", "in_flight_jobs": 1}]},
    )

    worker_id: str | None = Field(None, max_length=128, description="Ignored; the ID in the path is used.")
    capabilities: list[OfferedModel] = Field(
        default_factory=list,
        max_length=100,
        description="The models that it offers from now on; empty if they have not changed.",
    )
    in_flight_jobs: int = Field(
        0, ge=0, le=1_000_000, description="Ignored: the grid counts what it runs itself."
    )


class EnrolmentResult(BaseModel):
    """A worker that was enrolled."""

    worker_id: str = Field(description="The worker's ID.")
    seat: str = Field(description="The name of its seat in the grid.")


@dataclass(frozen=True, slots=True)
class EnrolledWorker:
    """An enrolled worker, and the JSON text by which changes of its offer are detected."""

    advertisement: StoredAdvertisement
    text: str

    @property
    def seat(self) -> str:
        """The name of its seat."""
        return make_seat_name(self.advertisement.worker_id)

    @property
    def queues(self) -> list[str]:
        """The queues that it serves: its models by their own names. Not a family or `any`, because it runs
        stages of graphs, not requests of the model APIs.
        """
        return list(
            dict.fromkeys(
                queue_names.make_queue_name(queue_names.LLM, model.model)
                for model in self.advertisement.capabilities
            )
        )

    @property
    def limits(self) -> tuple[Limit, ...]:
        """Its monthly spending limit, if a budget is set."""
        cents = sum(model.budget_monthly_cents for model in self.advertisement.capabilities)
        return (Limit(resource="money", window="month", amount=cents * 10_000),) if cents else ()

    @property
    def requests_per_minute(self) -> int | None:
        """The requests that it accepts in any minute: the lowest limit of its models."""
        rates = [model.rate_limit_rpm for model in self.advertisement.capabilities]
        return min((rate for rate in rates if rate is not None), default=None)


def make_seat_name(worker_id: str) -> str:
    """Return the seat name of a worker over HTTP."""
    return f"{HTTP_MACHINE}.{worker_id}"


def enrol(client: Redis, keys: Keys, advertisement: StoredAdvertisement) -> None:
    """Store a worker's offer for MAX_MISSED_HEARTBEATS heartbeats, in place of an earlier one.

    Raises WorkersFull.
    """

    def once(pipe: Pipeline) -> None:
        others: Any = pipe.zrangebyscore(keys("workers"), f"({now}", "+inf")
        if len(set(others) - {advertisement.worker_id.encode()}) >= MAX_WORKERS:
            raise WorkersFull(
                f"The grid already has {MAX_WORKERS} workers over HTTP",
                {
                    "path": "worker_id",
                    "limit": MAX_WORKERS,
                    "bottleneck": f"the limit of {MAX_WORKERS} workers over HTTP",
                    "fix": "remove one with DELETE /workers/{id}, or run a gridq worker beside the models",
                },
            )
        pipe.multi()
        _store(pipe, keys, advertisement, now)

    now = now_ms(client)
    client.transaction(once, keys("workers"))


def _store(pipe: Pipeline, keys: Keys, advertisement: StoredAdvertisement, now: int) -> None:
    life = max(advertisement.heartbeat_interval_secs * MAX_MISSED_HEARTBEATS * 1000, MIN_LEASE_MS)
    pipe.set(keys("worker", advertisement.worker_id), advertisement.model_dump_json(), px=life)
    pipe.zadd(keys("workers"), {advertisement.worker_id: now + life})
    pipe.pexpire(keys("workers"), life, gt=True)
    pipe.pexpire(keys("workers"), life, nx=True)


def record_heartbeat(client: Redis, keys: Keys, worker_id: str, heartbeat: Heartbeat) -> bool:
    """Extend a worker's lease. Returns False if the worker is not enrolled."""

    def once(pipe: Pipeline) -> None:
        text: Any = pipe.get(keys("worker", worker_id))
        pipe.multi()
        if text is None:
            return
        advertisement = StoredAdvertisement.model_validate_json(text)
        if heartbeat.capabilities:
            advertisement = advertisement.model_copy(update={"capabilities": heartbeat.capabilities})
        _store(pipe, keys, advertisement, now)

    now = now_ms(client)
    # Retried if the worker enrolled again meanwhile, so that an old offer does not replace a new one.
    done: Any = client.transaction(once, keys("worker", worker_id))
    return bool(done)


def remove(client: Redis, keys: Keys, worker_id: str) -> bool:
    """Remove a worker. Returns False if it was not enrolled."""
    both = client.pipeline(transaction=True)
    both.delete(keys("worker", worker_id))
    both.zrem(keys("workers"), worker_id)
    return bool(both.execute()[0])


def read_workers(client: Redis, keys: Keys) -> dict[str, EnrolledWorker]:
    """Return every enrolled worker by ID, and drop expired ones from the list."""
    client.zremrangebyscore(keys("workers"), "-inf", now_ms(client))
    ids: Any = client.zrange(keys("workers"), 0, -1)
    names = [name.decode() for name in ids]
    texts: Any = client.mget([keys("worker", name) for name in names]) if names else []
    found = {}
    for name, text in zip(names, texts, strict=True):
        if text is None:
            continue
        try:
            found[name] = EnrolledWorker(StoredAdvertisement.model_validate_json(text), text.decode())
        except ValidationError:  # stored by another version of gridq
            log.warning("ignoring the worker %s: it was enrolled by another version of gridq", name)
    return found


def describe_capability(advertisement: WorkerAdvertisement) -> dict[str, Any]:
    """Return the capability that the seat of a worker advertises."""
    host = advertisement.url.partition("://")[2].partition("/")[0]
    offered = [json.loads(each.model_dump_json()) for each in advertisement.capabilities]
    return {
        "host": host,
        "models": [{"name": each.model} for each in advertisement.capabilities],
        "url": advertisement.url,
        "worker_id": advertisement.worker_id,
        "offered": offered,
    }
