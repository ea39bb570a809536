"""Queues on a real server without workers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gridq.client import Client
from tests.builders import parallel, stage
from tests.conftest import GridEnv
from tests.unit.seats.live_seats import add_live_seat, echo_graph, open_client


@pytest.fixture
def client(grid_env: GridEnv) -> Iterator[Client]:
    with open_client(grid_env) as started:
        yield started


def test_a_queue_counts_pending_and_running_stages_and_wake_ups(client: Client) -> None:
    add_live_seat(client, "m.a", "bench:any", concurrency=2, state="ready")
    both = {"root": parallel(a=stage("bench_echo"), b=stage("bench_echo"))}
    client.submit(both, 1, wait_for_seat=True)
    client.submit(echo_graph(), 1, priority="batch")
    client.submit(echo_graph("rare"), 1, wait_for_seat=True)
    client.scripts.claim("m.a", "i-m.a", "slot", "nonce")
    found = {view.queue: view for view in client.queues()}
    shared, rare = found["bench:any"], found["bench:rare"]
    assert shared.pending == {"interactive": 1, "batch": 1}
    assert (shared.running, shared.concurrency, shared.seats) == (1, 2, ["m.a"])
    assert shared.oldest_ms is not None
    assert (rare.pending["interactive"], rare.concurrency, rare.seats, rare.wake_ups) == (1, 0, [], 1)
    assert client.queues()[0].queue == "gridq:router"
    [seat] = client.workers()
    assert (seat.busy, seat.concurrency, seat.free) == (1, 2, 1)
    assert seat.wake_ups >= 1
