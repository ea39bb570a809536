"""The vendors' own programs in a whole grid, each with a local server of its API format."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.homes import processes
from tests.real_programs.grid import TESTED_PROGRAMS, WAIT_SECONDS, Grid, up
from tests.waiting import wait_for
from workers.supervisor.embedded_server import EmbeddedServer

pytestmark = [pytest.mark.clis, pytest.mark.timeout(600)]

ASKED = {"prompt": "so it goes on", "system": "You are terse."}


@pytest.fixture(scope="module", params=TESTED_PROGRAMS)
def grid(
    request: pytest.FixtureRequest, server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Grid]:
    with up(request.param, server.url, tmp_path_factory.mktemp(request.param)) as made:
        yield made


def test_a_complete_answer_without_tools(grid: Grid) -> None:
    before = len(grid.server.requests)
    answer = grid.client.run(grid.complete("echo"), ASKED, WAIT_SECONDS)
    assert answer.strip().endswith("so it goes on")
    (request,) = grid.server.requests[before:]
    assert "You are terse." in str(request["body"])
    assert tools_of(request["body"]) in ([], ["request_user_input"])  # which `codex exec` rejects
    (row,) = grid.client.rows(grid.client.jobs(1)[0].job)
    assert row.tokens_in > 0
    assert row.tokens_out > 0


def test_a_streamed_answer(grid: Grid) -> None:
    job = grid.client.submit(grid.complete("echo"), ASKED, stream=True)
    pieces = [piece.value for piece in grid.client.stream(job, WAIT_SECONDS)]
    assert "".join(map(str, pieces)).strip().endswith("so it goes on")
    assert len(pieces) > 1 or not grid.tested.streams


def test_a_rate_limit_moves_the_stage_to_another_seat(grid: Grid) -> None:
    job = grid.client.submit(grid.complete("status-429"), ASKED)
    assert grid.wait_for_log("stage retried", job)["code"] == "seat.rate_limited"
    grid.client.cancel(job)
    assert len(grid.list_requests("status-429")) < 10 or grid.tested.retries, (
        "the program's own retries are off"
    )


def test_an_invalid_login_opens_the_breaker_of_its_seat(grid: Grid) -> None:
    job = grid.client.submit(grid.complete("locked"), ASKED)
    assert grid.wait_for_log("seat cooldown", job)["code"] == "seat.degraded"
    grid.client.cancel(job)


def test_cancel_ends_the_program_and_all_that_it_started(grid: Grid) -> None:
    def running() -> list[str]:
        return [line for line in processes(grid.folder) if _is(grid, line)]

    job = grid.client.submit(grid.complete("silent"), ASKED)
    wait_for(lambda: grid.list_requests("silent"), WAIT_SECONDS)
    assert running()
    assert grid.client.cancel(job)
    wait_for(lambda: not running(), 30)
    assert grid.server.disconnected.wait(30)


def tools_of(body: dict[str, Any]) -> list[str]:
    """Return the names of the tools in a request. Google's API format nests them one level deeper."""
    tools: list[dict[str, Any]] = body.get("tools") or []
    functions = [each for tool in tools for each in tool.get("functionDeclarations", [tool])]
    return [each["name"] for each in functions]


def _is(grid: Grid, line: str) -> bool:
    return any(str(Path(word).resolve()).startswith(str(grid.program.parents[2])) for word in line.split())
