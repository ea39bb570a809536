"""`GET /jobs/{id}` of a job with thousands of records: read, counted and encoded in parts."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from gridq.client import Client
from gridq.gateway.http.schemas import make_job_status
from gridq.gateway.routes.jobs import _read_job
from gridq.protocol.models import HistoryRow
from gridq.views.jobs import MAX_STEPS, ROWS_PER_PART, encode_rows, parse_rows
from tests.conftest import GridEnv
from tests.unit.store.plans import Grid, one

ROWS = 2 * MAX_STEPS + 1


def make_row(number: int, *, traceback: str = "") -> HistoryRow:
    return HistoryRow(
        path=f"root.stages[{number}]", stage="s", queue="q", worker="m.a", micro_dollars=3,
        traceback=traceback,
    )  # fmt: skip


@pytest.fixture
def client(grid_env: GridEnv) -> Iterator[Client]:
    with Client(config=grid_env.settings) as made:
        yield made


@pytest.mark.parametrize("with_tracebacks", [True, False])
def test_a_status_has_each_record_and_the_sum_of_their_costs(client: Client, with_tracebacks: bool) -> None:
    job = Grid(client.redis, client.config).job(one())
    rows = [make_row(number, traceback="line 1\nline 2") for number in range(ROWS)]
    client.redis.rpush(client.keys("rows", job), *(json.dumps([row.model_dump()]) for row in rows))
    view, spent, body = _read_job(client, job, with_tracebacks)
    assert spent == 3 * ROWS
    status = json.loads(body)
    assert [row["path"] for row in status["rows"]] == [row.path for row in rows]
    assert {bool(row["traceback"]) for row in status["rows"]} == {with_tracebacks}
    assert status == json.loads(json.dumps(make_job_status(view, status["waits_for"], spent)))


@pytest.mark.parametrize(
    "changes",
    [
        {"path": "b\udc80", "traceback": "\ud800 \u2028 é 🙂 \0 \n"},
        {"micro_dollars": 10**30, "tokens_in": 2**63},
        {"micro_dollars": None, "wait_ms": 1e16, "run_ms": 0.1, "started": 1764453600.123},
        {"dropped_fields": ["seed", "é"]},
    ],
    ids=["half of a pair", "large", "floats", "lists"],
)
def test_rows_are_encoded_as_they_were(changes: dict[str, object]) -> None:
    rows = [make_row(number) for number in range(ROWS_PER_PART)] + [make_row(0).model_copy(update=changes)]
    text = encode_rows(rows)
    assert json.loads(text) == [row.model_dump() for row in rows]
    assert parse_rows([text, b"[]", text]) == rows + rows


def test_no_rows_are_an_empty_list() -> None:
    assert encode_rows([]) == b"[]"
