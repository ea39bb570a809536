"""A seat whose profile changes what it offers while it works: other queues, an outage, and its end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gridq.execution.session import Session
from gridq.protocol.seat_states import UNREACHABLE, Unavailable
from gridq.store.keys import Keys
from gridq.store.scripts import Scripts
from tests.conftest import GridEnv
from tests.local_grid import BenchRunner
from workers.process.heartbeat import Heartbeat

pytestmark = pytest.mark.usefixtures("key_hygiene")

GONE = Unavailable(UNREACHABLE, "nothing answers at the engine's address")


class Seat:
    """A live session, with what the server knows of it."""

    def __init__(self, env: GridEnv) -> None:
        self.env = env
        self.session = Session(
            Scripts(env.client, env.settings),
            env.settings,
            seat="m.a",
            host="h",
            concurrency=2,
            queues=["bench:a", "bench:any"],
            runner=BenchRunner(),
        )
        self.beat = Heartbeat(
            env.client, env.settings, self.session, machine="m", kind="bench", capability={}
        )
        self.session.start()

    def read(self, field: str) -> str:
        found = self.env.client.hget(Keys(self.env.settings.prefix)("seat", "m.a"), field)
        return "" if found is None else found.decode()  # type: ignore[union-attr]


@pytest.fixture
def seat(grid_env: GridEnv) -> Iterator[Seat]:
    made = Seat(grid_env)
    yield made
    made.session.stop(0)


def test_other_queues_are_served_at_once(seat: Seat) -> None:
    seat.session.change_offer(["bench:b", "bench:any"], {"bench:b": ["b"]}, None)
    assert seat.read("queues").split() == ["bench:b", "bench:any"]
    assert seat.session.queues == ("bench:b", "bench:any")
    assert seat.read("families") == "bench:b=b"


def test_an_outage_takes_the_seat_out_of_work_and_says_why(seat: Seat) -> None:
    seat.session.change_offer(["bench:a"], {}, GONE)
    assert seat.read("draining") == "1"
    ad = seat.beat.build_advertisement()
    assert (ad.state, ad.reason) == (UNREACHABLE, GONE.reason)
    seat.session.change_offer(["bench:c"], {}, None)
    assert seat.read("draining") == ""
    assert seat.read("queues") == "bench:c"
    assert seat.beat.build_advertisement().state == "ready"


def test_a_seat_with_nothing_to_offer_stays_live_and_comes_back(seat: Seat) -> None:
    seat.session.change_offer([], {}, GONE)
    assert seat.session.queues == ()
    assert seat.session.unavailable == GONE
    seat.session.renew()
    seat.session.change_offer(["bench:a"], {}, None)
    assert seat.read("queues") == "bench:a"
    assert seat.session.unavailable is None
