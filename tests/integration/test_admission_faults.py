"""Jobs that cannot be admitted end with an error and do not return to the routers for ever."""

from __future__ import annotations

import json
from typing import Any

import pytest
from redis import exceptions as faults

from gridq import errors
from gridq.app import app
from gridq.jobs.record import End, JobOptions, make_job_id
from gridq.protocol.models import Advertisement
from gridq.router.router import Router
from gridq.seats import registry
from gridq.store.connection import now_ms
from gridq.store.scripts import Scripts
from gridq.submission.admission import Admission
from gridq.submission.inbox import Inbox
from gridq.submission.request import JobRequest
from tests.conftest import GridEnv
from tests.fakes.bench_profile import BenchProfile

pytestmark = pytest.mark.usefixtures("key_hygiene")

ECHO = {"root": {"op": "Stage", "id": "bench_echo"}}


class Paid(BenchProfile):
    """A bench profile with a stage whose cost is in its config."""

    def stages(self) -> list[dict[str, Any]]:
        effects = [{"effect": "Bench"}, {"effect": "Cost", "cents": {"$config": "cents", "default": 0}}]
        anything = {"kind": "Any"}
        return [
            *super().stages(),
            {
                "name": "paid",
                "implementation": "bench:echo",
                "input": anything,
                "output": anything,
                "effects": effects,
            },
        ]


@pytest.fixture
def router(grid_env: GridEnv) -> Router:
    """A router that acts only when it is called."""
    made = Router(app, 1)
    made.admission = Admission(made.scripts, grid_env.settings, {"bench": Paid()})
    made.scripts.register("m.a", "i", host="h", concurrency=1, queues=["bench:any"], record_ttl_ms=60_000)
    return made


def _end(scripts: Scripts, job: str) -> End | None:
    data: Any = scripts.client.lindex(scripts.keys("result", job), 0)
    return None if data is None else End.parse(data)


def test_a_second_message_for_a_job_does_not_admit_it_beside_the_first(
    router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the sweep sends one for a graph that takes long: the router's other threads stay free for others."""
    begun: list[str] = []

    def admit(request: JobRequest) -> Any:
        begun.append(request.job)
        assert not router.admit("big")
        raise ConnectionError

    monkeypatch.setattr(router.admission, "admit", admit)
    Inbox(router.scripts, router.scripts.config).enqueue("big", ECHO)
    for _ in range(2):
        with pytest.raises(ConnectionError):
            router.admit("big")
    assert begun == ["big", "big"], "it is tried again once the first has failed"


def test_an_internal_fault_fails_the_job(router: Router, monkeypatch: pytest.MonkeyPatch) -> None:
    def compile(graph: bytes) -> Any:
        raise KeyError("a fault")

    Inbox(router.scripts, router.scripts.config).enqueue("j1", ECHO)
    monkeypatch.setattr(router.admission, "compile", compile)
    assert not router.admit("j1")
    end = _end(router.scripts, "j1")
    assert end is not None
    assert isinstance(end.to_error(), errors.NotAdmitted)
    assert not router.scripts.client.exists(router.scripts.keys("inbox"))


def test_an_outage_of_the_server_leaves_the_job_in_the_inbox(
    router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compile(graph: bytes) -> Any:
        raise faults.ConnectionError("it is away")

    Inbox(router.scripts, router.scripts.config).enqueue("j1", ECHO)
    monkeypatch.setattr(router.admission, "compile", compile)
    with pytest.raises(faults.ConnectionError):
        router.admit("j1")
    assert _end(router.scripts, "j1") is None
    assert router.scripts.client.zscore(router.scripts.keys("inbox"), "j1") is not None


def test_a_refusal_does_not_end_a_job_that_another_router_admitted(
    router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Router(app, 1)
    other.admission = Admission(other.scripts, router.scripts.config, {"bench": Paid()})
    Inbox(router.scripts, router.scripts.config).enqueue("j1", ECHO)

    def compile(graph: bytes) -> Any:
        other.admit("j1")
        raise errors.UnknownStage("it is not known here")

    monkeypatch.setattr(router.admission, "compile", compile)
    assert not router.admit("j1")
    assert _end(router.scripts, "j1") is None
    assert router.scripts.client.exists(router.scripts.keys("job", "j1"))


def test_a_job_stays_in_the_inbox_while_its_only_seat_starts_again(router: Router) -> None:
    scripts = router.scripts
    Inbox(scripts, scripts.config).enqueue("j1", ECHO)
    scripts.leave("m.a", "i", "go")
    assert not router.admit("j1")
    assert _end(scripts, "j1") is None
    due: Any = scripts.client.zscore(scripts.keys("inbox"), "j1")
    assert due < now_ms(scripts.client) + 1000  # long before a lost message would be sent again
    scripts.register("m.a", "i2", host="h", concurrency=1, queues=["bench:any"], record_ttl_ms=60_000)
    router.admit("j1")
    assert scripts.client.exists(scripts.keys("job", "j1"))


def test_a_job_whose_seat_stays_away_is_refused_in_time(router: Router) -> None:
    scripts = router.scripts
    scripts.leave("m.a", "i", "go")
    Inbox(scripts, scripts.config).enqueue("j1", ECHO)
    assert not router.admit("j1")
    assert _end(scripts, "j1") is None
    scripts.client.hincrby(scripts.keys("submitted", "j1"), "submitted_at", -10_001)
    router.admit("j1")
    end = _end(scripts, "j1")
    assert end is not None
    assert isinstance(end.to_error(), errors.NoLiveSeat)


@pytest.mark.parametrize("cents", ["abc", "nan", 1e30, -5, [1], True, 1e308])
def test_an_invalid_cost_fails_the_job(router: Router, cents: Any) -> None:
    graph = {"root": {"op": "Stage", "id": "paid", "config": {"cents": cents}}}
    Inbox(router.scripts, router.scripts.config).enqueue("j1", graph)
    router.admit("j1")
    end = _end(router.scripts, "j1")
    assert end is not None
    assert isinstance(end.to_error(), errors.InvalidField)


@pytest.mark.parametrize("cents", [0, 3, 2.5])
def test_a_valid_cost_is_accepted(router: Router, cents: float) -> None:
    graph = {"root": {"op": "Stage", "id": "paid", "config": {"cents": cents}}}
    Inbox(router.scripts, router.scripts.config).enqueue("j1", graph)
    router.admit("j1")
    assert router.scripts.client.exists(router.scripts.keys("job", "j1"))


def test_a_seat_of_another_version_blocks_no_job(router: Router) -> None:
    """Its advertisement, or the capability in it, cannot be read: only its queues are used."""
    scripts = router.scripts
    scripts.register("m.b", "i", host="h", concurrency=1, queues=["bench:any"], record_ttl_ms=60_000)
    scripts.client.set(scripts.keys("advertisement", "m.b"), '{"seat":5}', px=60_000)
    newer = Advertisement(
        seat="m.a", machine="m", worker="a@m", incarnation="i", kind="bench", concurrency=1,
        queues=["bench:any"], capability={"slugs": ["any"], "new": {}},
    )  # fmt: skip
    registry.advertise(scripts.client, scripts.keys, newer, 10)
    assert [ad.seat for ad in registry.read_advertisements(scripts.client, scripts.keys)] == ["m.a"]
    Inbox(scripts, scripts.config).enqueue("j1", ECHO)
    router.admit("j1")
    assert scripts.client.hget(scripts.keys("job", "j1"), "excluded:0") is None
    assert scripts.client.exists(scripts.keys("job", "j1"))


def test_a_router_writes_the_wake_ups_of_an_emptied_server(router: Router) -> None:
    router.session.register()
    keys = router.scripts.keys
    router.scripts.client.delete(keys("wake_ups"), keys("seats"))
    router.session.renew()
    assert {"stage", "router"} <= {name.decode() for name in router.scripts.client.hkeys(keys("wake_ups"))}
    router.session.stop(0)


@pytest.mark.parametrize("size", [8, 200_000])
def test_a_job_of_the_inbox_is_estimated_by_its_input(router: Router, size: int) -> None:
    graph = {"root": {"op": "Stage", "id": "bench_spend", "config": {"tokens_in": 10, "tokens_out": 10}}}
    value = {"text": "y" * size, "max_tokens": 777}
    scripts = router.scripts
    options = JobOptions(wait_for_seat=True)
    queued = Inbox(scripts, scripts.config).enqueue(make_job_id(), graph, value, is_new_id=True)
    router.admit(queued)
    request = JobRequest(make_job_id(), json.dumps(graph).encode(), json.dumps(value).encode(), options)
    admitted = router.admission.admit(request).job
    estimates: list[Any] = [
        scripts.client.hget(scripts.keys("job", job), "tokens:0") for job in (queued, admitted)
    ]
    assert int(estimates[0].split()[0]) > size // 5
    assert estimates[0] == estimates[1]
