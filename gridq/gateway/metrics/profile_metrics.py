"""The metrics that the profiles of live seats report, as families under their own names."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from gridq.gateway.metrics.catalogue import METRICS
from gridq.profiles.metric_keys import MAX_METRICS, parse_metric

if TYPE_CHECKING:
    from prometheus_client import Metric

    from gridq.seats.registry import LiveSeat

PREFIX = "gridq_"
NO_HELP = "A metric of the seat's profile, as its worker reports it."


def build_profile_families(seats: Iterable[LiveSeat], helps: Mapping[str, str]) -> Iterator[Metric]:
    """Yield a family for each metric that live seats report. `helps` are the help texts by name.

    What is not a metric's key, what has a name of the gateway's own, and what is no number is left out: it
    must not spoil the answer for all others. The samples of a family have the labels of all of them.
    """
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    found: dict[str, dict[str, list[tuple[dict[str, str], float]]]] = defaultdict(lambda: defaultdict(list))
    for seat in seats:
        if seat.stale:
            continue
        for key, value in sorted(seat.metrics.items())[:MAX_METRICS]:
            parsed = parse_metric(key)
            if parsed is None or key == "busy" or not math.isfinite(value):
                continue
            name, labels = parsed
            family = PREFIX + name.removesuffix("_total")
            if family not in METRICS:
                found[family][name].append(({"seat": seat.seat, **labels}, value))
    for family, names in sorted(found.items()):
        is_counter = any(name.endswith("_total") for name in names)
        chosen = [some for name, some in names.items() if name.endswith("_total") == is_counter]
        samples = [sample for some in chosen for sample in some]
        columns = list(dict.fromkeys(label for labels, _ in samples for label in labels))
        family_class: Any = CounterMetricFamily if is_counter else GaugeMetricFamily
        text = next((helps[name] for name in names if name in helps), NO_HELP)
        built: Any = family_class(family, text, labels=columns)
        for labels, value in samples:
            built.add_metric([labels.get(column, "") for column in columns], value)
        yield built
