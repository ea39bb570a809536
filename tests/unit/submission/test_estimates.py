"""Estimated usage of a job's stages, as it is sent to the scripts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gridq.graph.plan import Plan
from gridq.submission.estimates import MAX_TIMEOUT_SECONDS, estimate_tokens, expect_usage, format_expected
from tests.fakes.bench_profile import BenchProfile
from tests.unit.store.plans import plan, step


def timed(*timeouts: float | None, queue: str = "bench:any") -> Plan:
    """Return steps of one stage each, with timeouts or None."""
    made = [step(queue=queue) for _ in timeouts]
    return plan(
        *(
            replace(one, ops=tuple(replace(op, timeout=seconds) for op in one.ops))
            for one, seconds in zip(made, timeouts, strict=True)
        )
    )


@pytest.mark.parametrize(
    ("seconds", "ms"), [(2.5, 2_500), (7, 7_000), (10**400, MAX_TIMEOUT_SECONDS * 1_000)]
)
def test_a_stage_timeout_is_sent(seconds: float, ms: int) -> None:
    found = estimate_tokens(timed(None, seconds), {"bench": BenchProfile()})
    assert format_expected(expect_usage(found, b'{"max_tokens": 900}', 4_000)) == [
        "tokens:1",
        f"0 0 {ms}",
    ]  # and no tokens that it never uses


def test_free_stages_send_no_estimate() -> None:
    assert estimate_tokens(timed(3.0, queue="gridq:local"), {"bench": BenchProfile()}) == ()
