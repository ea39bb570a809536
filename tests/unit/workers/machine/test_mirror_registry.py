from __future__ import annotations

import pytest

from gridq.store.keys import Keys
from tests.conftest import GridEnv
from workers.machine.mirror_registry import advertise_mirror, read_mirrors, withdraw_mirror
from workers.profiles.gpu.model_files.mirror_protocol import Mirror, make_secret

pytestmark = pytest.mark.usefixtures("key_hygiene")


def test_a_machine_is_found_by_its_live_seats_for_three_heartbeats(grid_env: GridEnv) -> None:
    client, keys = grid_env.client, Keys(grid_env.prefix)
    one, gone = (
        Mirror(machine=name, url="http://127.0.0.1:8790", secret=make_secret()) for name in ("one", "gone")
    )
    advertise_mirror(client, keys, one, 10.0)
    advertise_mirror(client, keys, gone, 10.0)
    assert read_mirrors(client, keys) == []
    client.zadd(keys("seats"), {"one.gpu0": 1, "one.local": 1, "two.local": 1})
    assert read_mirrors(client, keys) == [one]
    assert 25_000 < client.pttl(keys("models", "one")) <= 30_000
    withdraw_mirror(client, keys, "one")
    assert read_mirrors(client, keys) == []
