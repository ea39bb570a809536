"""A seat that is logged out takes nothing for a while, and nobody is left waiting for it without a word."""

from __future__ import annotations

import time

import pytest

from gridq.config.settings import Settings
from gridq.errors import NoLiveSeat, SeatDegraded
from gridq.profiles.profile import StageContext
from gridq.protocol.models import Advertisement, Json, StageCall
from gridq.seats import registry
from gridq.store.connection import connect
from tests.conftest import GridEnv
from tests.fakes.bench_profile import BENCH
from tests.local_grid import LocalGrid

ECHO = {"root": {"op": "Stage", "id": "bench_echo"}}


class LoggedOut:
    """Answers once it is logged in."""

    def __init__(self) -> None:
        self.logged_in = False

    def __call__(self, stage: StageCall, value: Json, context: StageContext) -> Json:
        if not self.logged_in:
            raise SeatDegraded("The login has run out", {"retry_after": 1.0})
        return value


def test_a_degraded_seat_is_not_live_until_it_recovers(grid_env: GridEnv) -> None:
    config = Settings(
        broker_url=grid_env.url, prefix=grid_env.prefix, profiles=(BENCH,), retry_backoff=0.1, renew_ms=100
    )
    login = LoggedOut()
    with LocalGrid(connect(grid_env.url), config, {"m.bench": ["bench:any"]}, runner=login) as grid:
        session = grid.sessions["m.bench"]

        def advertise() -> None:
            rest = session.unavailable
            ad = Advertisement(
                seat="m.bench",
                machine="m",
                worker="bench@m",
                incarnation=session.incarnation,
                kind="bench",
                concurrency=2,
                queues=["bench:any"],
                state=rest.state if rest else "ready",
                reason=rest.reason if rest else "",
            )
            registry.advertise(grid_env.client, grid.scripts.keys, ad, 10)

        session.on_change = advertise
        job = grid.client.submit(ECHO, 1)
        until = time.monotonic() + 20
        while grid_env.client.exists(grid.scripts.keys("serving", "bench:any")) or not session.unavailable:
            assert time.monotonic() < until
            time.sleep(0.01)
        with pytest.raises(NoLiveSeat, match="degraded: The login has run out"):
            grid.client.submit(ECHO, 2)
        login.logged_in = True
        assert grid.client.result(job, timeout=20) == 1
        assert grid.client.run(ECHO, 3, timeout=20) == 3
