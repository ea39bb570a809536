"""A server that hung does not run jobs afterwards whose clients were refused meanwhile."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from gridq.gateway.auth import caller
from gridq.gateway.grid import connection as grid_connection
from gridq.gateway.grid import orphaned_jobs
from gridq.protocol.states import JobState
from gridq.store import connection
from tests.acceptance.llm_grid import llm_grid
from tests.gateways import serving
from tests.refusals import check_refusal
from tests.waiting import wait_for

PATH = "/v1/chat/completions"
BODY = {"max_tokens": 5, "messages": [{"role": "user", "content": "hello"}]}


def test_a_job_is_cancelled_if_its_client_heard_that_the_server_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The answer to whether the grid requires keys stays cached, so the job itself is sent.
    monkeypatch.setattr(caller, "CACHE_SECONDS", 600.0)
    for module in (connection, grid_connection):
        monkeypatch.setattr(module, "CONNECT_TIMEOUT_SECONDS", 0.3)
    monkeypatch.setattr(orphaned_jobs, "RETRY_SECONDS", 0.05)
    with llm_grid(tmp_path) as grid, serving(grid.config) as gateway:
        gateway.post(PATH, {"model": "echo", **BODY})
        pid = grid.server.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            reply = gateway.http.post(PATH, json={"model": "silent", **BODY})
        finally:
            os.kill(pid, signal.SIGCONT)
        check_refusal(reply, 503, "broker.unreachable")
        states = [JobState.CANCELLED, JobState.DONE]
        wait_for(lambda: [job.state for job in grid.local.client.jobs(5)] == states)
