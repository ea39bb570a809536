"""Sums of costs when some are not known."""

from __future__ import annotations

from typing import Any

import pytest

from gridq.cli.commands.jobs import format_header
from gridq.gateway.grid.connection import sum_cents
from gridq.gateway.http.schemas import make_job_result, make_job_status, to_cents
from gridq.gateway.routes.model_api import make_usage_headers
from gridq.protocol.models import HistoryRow
from gridq.protocol.money import sum_costs
from gridq.protocol.states import JobState
from gridq.views.jobs import JobView


@pytest.mark.parametrize(
    ("costs", "sum_of_them"),
    [
        ([], 0),
        ([0, 0], 0),
        ([5, 7], 12),
        ([5, None], 5),
        ([None, 5], 5),
        ([None], None),
        ([0, None, 0], None),
    ],
)
def test_unknown_costs_do_not_reduce_a_sum(costs: list[int | None], sum_of_them: int | None) -> None:
    assert sum_costs(costs) == sum_of_them
    assert sum_costs(reversed(costs)) == sum_of_them


def row(micro: int | None, **fields: Any) -> HistoryRow:
    details = {"path": "root", "stage": "llm_chat", "queue": "llm:any", "worker": "a@m", **fields}
    return HistoryRow(**details, tokens_in=3, micro_dollars=micro)


def test_a_job_of_a_subscription_shows_its_tokens_and_no_cost() -> None:
    view = JobView("j", JobState.DONE, rows=[row(None)])
    status = make_job_status(view, "", sum_costs(each.micro_dollars for each in view.rows))
    assert (status["micro_dollars"], status["spent_cents"]) == (None, None)
    assert make_job_result(view, None)["spent_cents"] is None
    assert "3 tokens in, 0 out, price unknown" in "\n".join(format_header(view))
    assert "$" not in "\n".join(format_header(view))
    assert [name for name, _ in make_usage_headers(view.rows)] == [
        b"x-gridq-worker",
        b"x-gridq-queue-wait-ms",
    ]


def test_a_job_whose_cost_is_known_shows_it() -> None:
    view = JobView("j", JobState.DONE, rows=[row(None), row(12_001)])
    status = make_job_status(view, "", sum_costs(each.micro_dollars for each in view.rows))
    assert (status["micro_dollars"], status["spent_cents"]) == (12_001, 2)
    assert "$0.012001" in "\n".join(format_header(view))
    assert sum_cents(view.rows) == pytest.approx(1.2001)
    assert (b"x-gridq-cost-cents", b"1.2001") in make_usage_headers(view.rows)
    assert to_cents(0) == 0
