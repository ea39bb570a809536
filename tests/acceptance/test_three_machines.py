"""Three machines share work under budgets, and every micro-dollar of the ledger is one of the invoices: a
small run of `three_machines`, calm at first, then under attack.
"""

from __future__ import annotations

import time

import pytest

from tests.acceptance.machines import SEATS, bounds
from tests.acceptance.three_machines import closing, make
from tests.chaos.plan import FAULTS, Fault

SEED = 7
CALM = 3.0
SECONDS = 7.0
STAGES = 250
ATTACKS = (
    Fault(CALM, "kill", 0.2, 2.0, 0.5),
    Fault(CALM + 0.5, "pause", 0.7, 2.0, 0.5),
    Fault(CALM + 1.0, "client-kill", 0.5, 0.0, 0.5),
    Fault(CALM + 1.5, "stop", 0.3, 1.5, 0.5),
    Fault(CALM + 2.5, "server-kill", 0.5, 0.5, 0.5),
    Fault(CALM + 3.5, "drain", 0.1, 0.0, 0.5),
)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_ledger_equals_the_invoices() -> None:
    attacked: list[float] = []

    def report(text: str) -> None:
        print(text)
        if not attacked and FAULTS.keys() & set(text.split()):
            attacked.append(time.monotonic() * 1000)

    plan = make(STAGES, SEED, SECONDS, list(ATTACKS))
    done = closing(plan, bounds(STAGES), routers=1, report=report)
    figures = done.to_json()
    assert figures["broken"] == []

    assert sum(figures["faults"].values()) >= len(ATTACKS) - 1
    assert figures["stages"] >= STAGES
    # Keys and logins both, on each machine.
    recorded = {seat for seat, each in figures["seats"].items() if each["recorded"]}
    assert {seat.machine for seat in SEATS if seat.id in recorded} == {"m1", "m2", "m3"}
    assert {seat.cli for seat in SEATS if seat.id in recorded} == {False, True}
    # Some limit bound: work went elsewhere, though the cheaper seat was there.
    assert any(
        use["used"] == use["of"] if use["resource"] == "requests" else use["used"] > use["of"] * 0.9
        for use in figures["limits"]
    )
    before = [each.what for each in done.invoices.differences if each.call.at < attacked[0] - 1000]
    assert set(before) <= {
        "cancelled",
        "seat",
    }  # jobs were cancelled, and answers broken off, in the calm too
