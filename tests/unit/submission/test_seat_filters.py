"""Seats excluded by a job's options."""

from __future__ import annotations

import pytest

from gridq.errors import NoLiveSeat
from gridq.jobs.record import JobOptions
from gridq.protocol.models import Advertisement
from gridq.submission.seat_filters import exclude_by_options


def seat(name: str, *queues: str) -> Advertisement:
    return Advertisement(
        seat=name, machine="m", worker=name, incarnation="i", kind="llm", concurrency=1, queues=list(queues)
    )


SEATS = (seat("m.a", "llm:any", "llm:x"), seat("m.b", "llm:any", "llm:x"), seat("m.local", "gridq:local"))
STEPS = {0: ("llm:x",), 1: ("gridq:local",), 2: ("gridq:pure",)}


def test_a_pin_excludes_all_other_seats() -> None:
    assert exclude_by_options(STEPS, SEATS, JobOptions(pin="m.a")) == {0: [["m.b", "=m.a"]]}


def test_avoided_seats_are_excluded_from_all_stages_that_seats_claim() -> None:
    found = exclude_by_options(STEPS, SEATS, JobOptions(avoid=("m.b", "m.gone")))
    assert found == {0: [["m.b", "m.gone"]], 1: [["m.b", "m.gone"]]}


def test_without_filters_no_seat_is_excluded() -> None:
    assert exclude_by_options(STEPS, SEATS, JobOptions()) == {}


@pytest.mark.parametrize("wish", [{"pin": "m.gone"}, {"pin": "m.local"}, {"avoid": ("m.a", "m.b")}])
def test_filters_that_no_seat_meets_are_refused(wish: dict[str, object]) -> None:
    steps = {0: ("llm:x",)}
    with pytest.raises(NoLiveSeat) as refused:
        exclude_by_options(steps, SEATS, JobOptions.model_validate(wish))
    assert refused.value.details["queue"] == "llm:x"
    assert (
        exclude_by_options(steps, SEATS, JobOptions.model_validate(wish | {"wait_for_seat": True}))
        is not None
    )


def test_a_pin_to_an_absent_seat_excludes_all_others() -> None:
    assert exclude_by_options({0: ("llm:x",)}, SEATS, JobOptions(pin="m.c", wait_for_seat=True)) == {
        0: [["m.a", "m.b", "=m.c"]]
    }
