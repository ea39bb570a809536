"""A seat whose login has expired takes no stage for a while, and submitters get the reason."""

from __future__ import annotations

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
from tests.waiting import wait_for

ECHO = {"root": {"op": "Stage", "id": "bench_echo"}}


class LoggedOut:
    """Runs stages once it is logged in."""

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
        serving = grid.scripts.keys("serving", "bench:any")
        wait_for(lambda: session.unavailable and not grid_env.client.exists(serving))
        with pytest.raises(NoLiveSeat, match="degraded: The login has run out"):
            grid.client.submit(ECHO, 2, queue_timeout=0.1)
        login.logged_in = True
        assert grid.client.result(job, timeout=20) == 1
        assert grid.client.run(ECHO, 3, timeout=20) == 3
