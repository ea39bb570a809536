"""Readers of the same view share one read."""

from __future__ import annotations

import asyncio
import gc

from gridq.gateway.grid.connection import GridConnection
from gridq.gateway.grid.snapshot import GridSnapshot
from gridq.gateway.options import GatewayOptions
from gridq.views.jobs import JobReader, JobView
from tests.conftest import GridEnv
from tests.unit.store.plans import Grid, one


def test_watchers_of_a_job_share_one_read(grid_env: GridEnv) -> None:
    grid = Grid(grid_env.client, grid_env.settings)
    grid.admit(one(), job="watched")

    async def watched(connection: GridConnection) -> tuple[list[JobView], JobView, JobView]:
        snapshot = GridSnapshot(connection)
        watchers = [snapshot.job("watched") for _ in range(20)]
        views = await asyncio.gather(*(each.get() for each in watchers))
        watchers[0].invalidate()
        again = await watchers[1].get()
        del watchers
        gc.collect()
        assert not snapshot._jobs, "kept as long as anybody watches"
        return views, again, await asyncio.to_thread(JobReader(grid.client, grid.keys, "watched").read)

    async def run() -> None:
        connection = await GridConnection.open(grid_env.settings, GatewayOptions())
        try:
            views, again, now = await watched(connection)
        finally:
            await connection.close()
        assert all(view is views[0] for view in views)
        assert again is not views[0]
        assert again.state is views[0].state is now.state
        assert now.state is not None

    asyncio.run(run())
