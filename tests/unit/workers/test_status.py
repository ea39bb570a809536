"""What is said of a grid whose server does not answer."""

from __future__ import annotations

from gridq.store.connection import connect
from gridq.store.keys import Keys
from workers.embedded import free_port
from workers.status import look_at_grid


def test_a_server_that_is_away_is_named_by_its_own_address() -> None:
    port = free_port()
    url = f"redis://:hidden@127.0.0.1:{port}/0"
    with connect(url, retry=False) as client:
        error = look_at_grid(client, Keys("t:"), url)["error"]
    assert f"redis://127.0.0.1:{port}/0" in error
    assert "hidden" not in error
