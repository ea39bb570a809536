"""Profiles' metrics reach Prometheus under their own names; what a worker gets wrong spoils nothing."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gridq.gateway.metrics.collector import _FamilyList
from gridq.gateway.metrics.profile_metrics import build_profile_families
from gridq.profiles.metric_keys import MAX_METRICS, format_metric, parse_metric
from gridq.seats.registry import LiveSeat


def seat(name: str, stale: bool = False, **metrics: float) -> LiveSeat:
    return LiveSeat(
        seat=name, machine="m", worker=name, incarnation="1", kind="k", concurrency=1, queues=[],
        metrics=metrics, stale=stale,
    )  # fmt: skip


def expose(*seats: LiveSeat) -> dict[tuple[str, ...], float]:
    """Return the samples that a scrape reads: by name, then labels in their order."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_FamilyList(list(build_profile_families(seats, {}))))
    text = generate_latest(registry).decode()
    return {
        (sample.name, *(f"{key}={value}" for key, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


def test_names_and_labels_are_the_profiles_own() -> None:
    found = expose(
        seat(
            "m.gpu0",
            **{
                'gpu_memory_bytes{use="free"}': 5.0,
                'gpu_memory_bytes{use="used"}': 3.0,
                "gpu_energy_joules_total": 7.5,
                "gpu_seconds_total": 2.0,
            },
        ),
        seat("m.openai", **{'api_calls_total{provider="api.openai.com"}': 4.0}),
        seat("m.own", capacity_left_ratio=0.25),
    )
    assert found == {
        ("gridq_gpu_memory_bytes", "seat=m.gpu0", "use=free"): 5.0,
        ("gridq_gpu_memory_bytes", "seat=m.gpu0", "use=used"): 3.0,
        ("gridq_gpu_energy_joules_total", "seat=m.gpu0"): 7.5,
        ("gridq_gpu_seconds_total", "seat=m.gpu0"): 2.0,
        ("gridq_api_calls_total", "provider=api.openai.com", "seat=m.openai"): 4.0,
        ("gridq_capacity_left_ratio", "seat=m.own"): 0.25,
    }


def test_two_seats_share_a_family_whatever_their_labels() -> None:
    found = expose(seat("a", **{'x_total{kind="1"}': 1.0}), seat("b", x_total=2.0))
    assert found == {("gridq_x_total", "kind=1", "seat=a"): 1.0, ("gridq_x_total", "kind=", "seat=b"): 2.0}


@pytest.mark.parametrize(
    "key", ["", "Upper", "a b", "x{", 'x{seat="other"}', 'x{a="1\n2"}', "x{a=1}", "loaded:m", "x" * 200]
)
def test_what_is_no_key_is_left_out(key: str) -> None:
    assert parse_metric(key) is None
    assert expose(seat("a", **{key: 1.0, "good": 1.0})) == {("gridq_good", "seat=a"): 1.0}


def test_the_gateways_own_names_no_numbers_and_old_readings_are_left_out() -> None:
    odd = {"jobs": 1.0, "seat_up": 0.0, "stages_total": 3.0, "bad": float("nan"), "busy": 2.0}
    assert expose(seat("a", **odd), seat("b", stale=True, good=1.0)) == {}


def test_a_name_that_is_a_counter_at_one_seat_and_a_gauge_at_another_is_one_family() -> None:
    assert expose(seat("a", x=1.0), seat("b", x_total=2.0)) == {("gridq_x_total", "seat=b"): 2.0}


def test_one_seat_does_not_fill_the_answer() -> None:
    assert len(expose(seat("a", **{f"m{number}": 1.0 for number in range(10 * MAX_METRICS)}))) == MAX_METRICS


def test_a_key_survives_any_label() -> None:
    """What Prometheus would write with a backslash becomes `_`; a label has 120 characters at most."""
    for value, kept in (
        ('quote"', "quote_"),
        ("line\nbreak", "line_break"),
        ("back\\slash", "back_slash"),
        ("x" * 500, "x" * 120),
        ("ünïcode, {a=1}", "ünïcode, {a=1}"),
        ("", ""),
    ):
        assert parse_metric(format_metric("model_loaded", model=value)) == ("model_loaded", {"model": kept})


def test_a_sum_and_a_count_are_a_summary_and_half_a_one_is_left_out() -> None:
    both = seat("a", load_seconds_sum=2.5, load_seconds_count=2.0)
    assert expose(both, seat("b", load_seconds_sum=1.0, x_count=3.0)) == {
        ("gridq_load_seconds_sum", "seat=a"): 2.5,
        ("gridq_load_seconds_count", "seat=a"): 2.0,
    }
