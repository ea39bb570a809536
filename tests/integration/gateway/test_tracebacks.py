"""Where a stage's own code failed: operators see it, agents do not."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gridq.cli.commands.jobs import find_traceback
from gridq.client import Client
from gridq.config.settings import Settings, settings
from gridq.errors import StageError
from gridq.limits import api_keys
from gridq.protocol import queue_names
from gridq.stages import stage
from gridq.store.connection import connect
from tests.gateways import Gateway, serving
from tests.local_grid import LocalGrid
from workers.supervisor.embedded_server import EmbeddedServer

GRAPH = {"root": {"op": "Stage", "id": "break_down"}}


@stage
def break_down(value: Any) -> Any:
    raise ValueError(f"no {value}: sk-a1b2c3d4e5f6g7h8")


@dataclass
class Site:
    gateway: Gateway
    grid: LocalGrid
    keys: dict[str, str]


@pytest.fixture(scope="module")
def site(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    config = Settings(
        broker_url=server.url,
        prefix=f"t{secrets.token_hex(4)}:",
        home=Path(tmp_path_factory.mktemp("home")),
        stages=(__name__,),
    )
    redis = connect(server.url)
    seats = {
        "m.local": [queue_names.LOCAL, queue_names.make_module_queue(__name__)],
        "m.router": [queue_names.PURE],
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRIDQ_STAGES", __name__)
        settings.cache_clear()
        with LocalGrid(redis, config, seats) as grid, serving(config) as gateway:
            scopes = {"ann": ("submit", "read"), "reader": ("read-all",), "operator": ("operate",)}
            keys = {
                name: api_keys.create(redis, grid.scripts.keys, name, scopes=given)[1]
                for name, given in scopes.items()
            }
            yield Site(gateway, grid, keys)
    settings.cache_clear()
    for name in redis.scan_iter(f"{config.prefix}*", count=1000):
        redis.unlink(name)
    redis.close()


def test_only_an_operator_sees_where_the_code_of_a_stage_failed(site: Site) -> None:
    with Client(site.gateway.url, site.keys["ann"]) as ann:
        job = ann.submit(GRAPH, "words of ann")
        with pytest.raises(StageError) as caught:
            ann.result(job, 30)
        assert caught.value.code == "stage.failed"
        assert __file__ not in caught.value.to_json()
        assert "a1b2c3d4" not in caught.value.to_json()
    for name, sees in (("ann", False), ("reader", False), ("operator", True)):
        with Client(site.gateway.url, site.keys[name]) as client:
            view = client.view(job)
            [row] = client.rows(job)
            assert bool(find_traceback(view)) == bool(row.traceback) == sees, name
    assert row.traceback.splitlines()[1].startswith(f'  File "{__file__}"')
    assert row.traceback.endswith("ValueError: no words of ann: ***")
    with Client(config=site.grid.config) as server:  # whoever may read the server is an operator
        assert server.rows(job)[0].traceback == row.traceback
