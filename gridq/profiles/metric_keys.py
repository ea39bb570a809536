"""The metrics that profiles report with their seats' heartbeats, and that gateways show to Prometheus.

A key is a metric's own name, with its labels as Prometheus writes them: `gpu_memory_bytes{use="free"}`.
Names are in base units (seconds, bytes, joules, ratios from 0 to 1). A name that ends in `_total` is a
counter since the worker's start. `x_sum` and `x_count` together are the summary `x`; one without the other is
left out. Any other name is a gauge. A gateway puts `gridq_` before the name and adds the label `seat`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

MAX_METRICS = 200
"""Metrics of one seat that a gateway shows; the first in the order of their keys."""

MAX_DETAILS_CHARACTERS = 16_384
"""Characters of a seat's details, as JSON. A worker leaves out larger ones."""

_KEY = re.compile(r'([a-z][a-z0-9_]{1,79})(?:\{((?:[a-z_]+="[^"\\\n]{0,120}",?){1,4})\})?')
_LABEL = re.compile(r'([a-z_]+)="([^"\\\n]*)"')


def format_metric(name: str, **labels: str) -> str:
    """Return the key of a metric.

    >>> format_metric("gpu_memory_bytes", use="free")
    'gpu_memory_bytes{use="free"}'
    """
    if not labels:
        return name
    cleaned = {label: re.sub(r'["\\\n]', "_", value)[:120] for label, value in labels.items()}
    return name + "{" + ",".join(f'{label}="{value}"' for label, value in cleaned.items()) + "}"


def parse_metric(key: str) -> tuple[str, Mapping[str, str]] | None:
    """Return a metric's name and labels; None if the key is not of this form, or names the label `seat`."""
    match = _KEY.fullmatch(key)
    if match is None:
        return None
    labels = dict(_LABEL.findall(match[2] or ""))
    return None if "seat" in labels else (match[1], labels)
