"""The metrics that the profiles of live seats report, as families under their own names."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from gridq.gateway.metrics.catalogue import METRICS
from gridq.profiles.metric_keys import MAX_METRICS, parse_metric

if TYPE_CHECKING:
    from prometheus_client import Metric

    from gridq.seats.registry import LiveSeat

PREFIX = "gridq_"
NO_HELP = "A metric of the seat's profile, as its worker reports it."


SUFFIXES = ("_total", "_sum", "_count")
"""Endings of samples: of a counter, and of a summary, which has both of its."""

Labels = dict[str, str]


def build_profile_families(seats: Iterable[LiveSeat], helps: Mapping[str, str]) -> Iterator[Metric]:
    """Yield a family for each metric that live seats report. `helps` are the help texts by name.

    What is not a metric's key, what has a name of the gateway's own, and what is no number is left out: it
    must not spoil the answer for all others. The samples of a family have the labels of all of them.
    """
    found: dict[str, dict[str, list[tuple[Labels, float]]]] = defaultdict(lambda: defaultdict(list))
    for seat in seats:
        if seat.stale:
            continue
        for key, value in sorted(seat.metrics.items())[:MAX_METRICS]:
            parsed = parse_metric(key)
            if parsed is None or key == "busy" or not math.isfinite(value):
                continue
            name, labels = parsed
            suffix = next((each for each in SUFFIXES if name.endswith(each)), "")
            family = PREFIX + name.removesuffix(suffix)
            if family not in METRICS:
                found[family][suffix].append(({"seat": seat.seat, **labels}, value))
    for family, by_suffix in sorted(found.items()):
        name = family.removeprefix(PREFIX)
        text = next((helps[name + each] for each in ("", *SUFFIXES) if name + each in helps), NO_HELP)
        if by_suffix["_sum"] and by_suffix["_count"]:
            yield _build_summary(family, text, by_suffix["_sum"], by_suffix["_count"])
        elif samples := by_suffix["_total"] or by_suffix[""]:
            yield _build_family(family, text, samples, is_counter=bool(by_suffix["_total"]))


def _build_family(family: str, text: str, samples: list[tuple[Labels, float]], *, is_counter: bool) -> Metric:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    columns = _list_columns(samples)
    built: Any = (CounterMetricFamily if is_counter else GaugeMetricFamily)(family, text, labels=columns)
    for labels, value in samples:
        built.add_metric([labels.get(column, "") for column in columns], value)
    return cast("Metric", built)


def _build_summary(
    family: str, text: str, sums: list[tuple[Labels, float]], counts: list[tuple[Labels, float]]
) -> Metric:
    from prometheus_client.core import SummaryMetricFamily

    columns = _list_columns(sums)
    built: Any = SummaryMetricFamily(family, text, labels=columns)
    for labels, value in sums:
        count = next((each for same, each in counts if same == labels), None)
        if count is not None:
            built.add_metric([labels.get(column, "") for column in columns], count, value)
    return cast("Metric", built)


def _list_columns(samples: list[tuple[Labels, float]]) -> list[str]:
    return list(dict.fromkeys(label for labels, _ in samples for label in labels))
