"""Demands beyond the queue, which admission compares with the capabilities of the seats."""

from __future__ import annotations

from typing import Any

import pytest

from gridq.errors import NoLiveSeat
from gridq.graph.catalogue import StageSpec
from gridq.jobs.record import JobOptions
from gridq.profiles.profile import load_profiles
from gridq.protocol.models import Advertisement
from gridq.seats import registry
from gridq.store.replies import Claim
from gridq.store.scripts import Scripts
from gridq.submission.admission import Admission
from gridq.submission.request import JobRequest
from tests.conftest import GridEnv

pytestmark = pytest.mark.usefixtures("key_hygiene")

QUEUE = "gpu:cuda-24g"


@pytest.fixture
def scripts(grid_env: GridEnv) -> Scripts:
    """Scripts of a grid with two live cards of 24 GB, an old and a new one."""
    scripts = Scripts(grid_env.client, grid_env.settings)
    for name, cap in (("m.old", "7.5"), ("m.new", "10.0")):
        scripts.register(name, "i", host="h", concurrency=1, queues=[QUEUE], record_ttl_ms=60_000)
        capability: dict[str, Any] = {
            "device": "cuda:0",
            "name": "a card",
            "vendor": "nvidia",
            "backend": "cuda",
            "memory_mb": 24_000,
            "compute_cap": cap,
        }
        ad = Advertisement(
            seat=name,
            machine="m",
            worker=name,
            incarnation="i",
            kind="gpu",
            concurrency=1,
            queues=[QUEUE],
            capability=capability,
        )
        registry.advertise(grid_env.client, scripts.keys, ad, 10)
    return scripts


def admission(scripts: Scripts, grid_env: GridEnv, effect: dict[str, Any]) -> Admission:
    made = Admission(scripts, grid_env.settings, load_profiles(("gpu",)))
    spec = {
        "name": "on_gpu",
        "input": {"kind": "Any"},
        "output": {"kind": "Any"},
        "effects": [effect],
        "implementation": "gpu:x",
    }
    made._catalogue = made._local_catalogue.extend([StageSpec.from_json(spec)])
    return made


GRAPH = b'{"root": {"op": "Stage", "id": "on_gpu"}}'


def request(job: str, **options: Any) -> JobRequest:
    return JobRequest(job, GRAPH, b"1", JobOptions(**options))


def effect(memory_mb: int = 20_000, compute_cap: str = "7.0") -> dict[str, Any]:
    return {"effect": "Gpu", "backend": "cuda", "memory_mb": memory_mb, "compute_cap": compute_cap}


def test_only_matching_seats_may_claim(scripts: Scripts, grid_env: GridEnv) -> None:
    made = admission(scripts, grid_env, effect(compute_cap="8.0"))
    made.admit(request("j"))
    assert scripts.claim("m.old", "i", "i.0", "n") == "none"
    claim = scripts.claim("m.new", "i", "i.0", "n")
    assert isinstance(claim, Claim)
    assert claim.job == "j"


def test_a_refusal_says_what_each_seat_lacks(scripts: Scripts, grid_env: GridEnv) -> None:
    made = admission(scripts, grid_env, effect(compute_cap="12.0"))
    with pytest.raises(NoLiveSeat, match=r"compute capability 12\.0, cuda:0 has 10\.0"):
        made.admit(request("j"))
    assert not grid_env.client.exists(scripts.keys("job", "j"))


def test_a_job_may_wait_for_a_matching_seat(scripts: Scripts, grid_env: GridEnv) -> None:
    made = admission(scripts, grid_env, effect(compute_cap="12.0"))
    assert made.admit(request("j", wait_for_seat=True))
    scripts.sweep()
    assert scripts.claim("m.new", "i", "i.0", "n") == "none"
    scripts.register("m.next", "i", host="h", concurrency=1, queues=[QUEUE], record_ttl_ms=60_000)
    assert isinstance(scripts.claim("m.next", "i", "i.0", "n"), Claim)


def test_a_demand_that_all_meet_excludes_no_seat(scripts: Scripts, grid_env: GridEnv) -> None:
    made = admission(scripts, grid_env, effect())
    made.admit(request("j"))
    assert isinstance(scripts.claim("m.old", "i", "i.0", "n"), Claim)


def test_the_seats_are_not_read_again_for_each_job(scripts: Scripts, grid_env: GridEnv) -> None:
    made = admission(scripts, grid_env, effect(compute_cap="8.0"))
    made.admit(request("j0"))
    before = grid_env.client.info("commandstats")["cmdstat_mget"]["calls"]
    for number in range(1, 4):
        made.admit(request(f"j{number}"))
    after = grid_env.client.info("commandstats")["cmdstat_mget"]["calls"]
    assert after - before == 3  # the script's own: no advertisement
    assert scripts.claim("m.old", "i", "i.0", "n") == "none"


def test_seats_are_read_again_before_a_refusal(scripts: Scripts, grid_env: GridEnv) -> None:
    made = admission(scripts, grid_env, effect(compute_cap="8.0"))
    client, keys = grid_env.client, scripts.keys
    text = client.get(keys("advertisement", "m.new"))
    assert isinstance(text, bytes)
    client.delete(keys("advertisement", "m.new"))
    with pytest.raises(NoLiveSeat):
        made.admit(request("j"))
    client.set(keys("advertisement", "m.new"), text, px=10_000)
    assert made.admit(request("j")).job == "j"
