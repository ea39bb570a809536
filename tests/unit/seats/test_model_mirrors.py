from __future__ import annotations

import pytest

from gridq.seats.model_mirrors import advertise_mirror, read_mirrors, withdraw_mirror
from gridq.store.keys import Keys
from tests.conftest import GridEnv

pytestmark = pytest.mark.usefixtures("key_hygiene")


def test_a_machine_is_found_by_its_live_seats_for_three_heartbeats(grid_env: GridEnv) -> None:
    client, keys = grid_env.client, Keys(grid_env.prefix)
    advertise_mirror(client, keys, "one", "its models", 10.0)
    advertise_mirror(client, keys, "gone", "its models", 10.0)
    assert read_mirrors(client, keys) == {}
    client.zadd(keys("seats"), {"one.gpu0": 1, "one.local": 1, "two.local": 1})
    assert read_mirrors(client, keys) == {"one": "its models"}
    assert 25_000 < client.pttl(keys("models", "one")) <= 30_000
    withdraw_mirror(client, keys, "one")
    assert read_mirrors(client, keys) == {}
