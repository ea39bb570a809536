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
"""The ending of a counter's name, and those of a summary, which has a sum and a count."""

Labels = dict[str, str]
Sample = tuple[Labels, float]


def build_profile_families(seats: Iterable[LiveSeat], helps: Mapping[str, str]) -> Iterator[Metric]:
    """Yield a family for each metric that live seats report. `helps` are the help texts by name.

    Left out, so that they do not spoil the answer: invalid keys, names of the gateway's own metrics, what is
    no finite number, and a sum without a count or a count without a sum. If the samples of a family have
    different labels, each gets all of them.
    """
    found: dict[str, dict[str, list[Sample]]] = defaultdict(lambda: defaultdict(list))
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


def _build_family(family: str, text: str, samples: list[Sample], *, is_counter: bool) -> Metric:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    columns = _list_columns(samples)
    built: Any = (CounterMetricFamily if is_counter else GaugeMetricFamily)(family, text, labels=columns)
    for labels, value in samples:
        built.add_metric([labels.get(column, "") for column in columns], value)
    return cast("Metric", built)


def _build_summary(family: str, text: str, sums: list[Sample], counts: list[Sample]) -> Metric:
    from prometheus_client.core import SummaryMetricFamily

    columns = _list_columns(sums)
    built: Any = SummaryMetricFamily(family, text, labels=columns)
    count_by_labels = {frozenset(labels.items()): count for labels, count in counts}
    for labels, value in sums:
        count = count_by_labels.get(frozenset(labels.items()))
        if count is not None:
            built.add_metric([labels.get(column, "") for column in columns], count, value)
    return cast("Metric", built)


def _list_columns(samples: list[Sample]) -> list[str]:
    return list(dict.fromkeys(label for labels, _ in samples for label in labels))
