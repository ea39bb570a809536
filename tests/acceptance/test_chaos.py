"""Bounded chaos runs: one with a fixed seed, one with a random seed."""

from __future__ import annotations

import json
import secrets
import subprocess

import pytest

from tests.acceptance.homes import GRIDQ
from tests.chaos import plan

POORER = ("agent thrifty", "agent cat", "team research")


def chaos(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*GRIDQ, "chaos", *arguments, "--json"], capture_output=True, text=True, timeout=500, check=False
    )


@pytest.mark.slow
@pytest.mark.timeout(520)
@pytest.mark.parametrize("seed", [20, None], ids=["fixed", "random"])
def test_nothing_is_lost_and_nothing_happens_twice(seed: int | None) -> None:
    chosen = secrets.randbelow(1_000_000) if seed is None else seed
    print(f"seed {chosen}")
    done = chaos(
        "--stages", "300", "--seed", str(chosen), "--seconds", "40", "--every", "1", "--machines", "2"
    )
    result = json.loads(done.stdout)
    assert done.returncode == 0, [check for check in result["checks"] if check["breaches"]]
    assert not any(check["breaches"] for check in result["checks"])
    assert result["stages"] >= 300
    assert result["runs"] > 0
    assert sum(result["faults"].values()) > 20
    assert result["logs"] is None
    assert any(result["faults"].get(kind) for kind in plan.ENDPOINT_FAULTS)
    assert result["requests"]["answered"] > 40
    assert result["calls_billed"] >= result["requests"]["answered"]
    bound = {limit["who"]: limit for limit in result["limits"]}
    assert bound.keys() == {"grid", "seat m1.bench", "seat m2.bench", "owner alice", *POORER}
    assert bound["grid"]["used"] > 0


def test_an_unknown_fault_is_refused_at_once() -> None:
    done = chaos("--faults", "flood")
    assert done.returncode == 2
    assert all(name in done.stderr for name in plan.FAULTS)
