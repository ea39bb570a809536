"""A zone whose day begins when a run wants it to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.chaos import time_zone

SHOW = """
import json, sys
from zoneinfo import ZoneInfo
from gridq.protocol.calendar import compute_calendar
from gridq.config.settings import Settings
ZoneInfo("UTC"), ZoneInfo("Europe/Berlin")
at = int(sys.argv[1])
turns = compute_calendar(Settings().timezone, at)
near = [[turn for turn in turns[each] if abs(turn - at) < 43_000_000] for each in ("day", "month")]
print(json.dumps(near))
"""


@pytest.mark.parametrize(
    "when", ["2026-11-28T22:11:17", "2026-12-01T09:00:00", "2026-12-01T00:00:00", "2026-11-30T23:59:59"]
)
def test_a_day_begins_at_the_chosen_time_and_a_month_does_not(tmp_path: Path, when: str) -> None:
    midnight = datetime.fromisoformat(when).replace(tzinfo=UTC).timestamp()
    env = {**os.environ, **time_zone.install(tmp_path, midnight)}
    result = subprocess.run(
        [sys.executable, "-c", SHOW, str(int(midnight) * 1000)],
        env=env, capture_output=True, text=True, check=True,
    )  # fmt: skip
    days, months = json.loads(result.stdout)
    assert days == [int(midnight) * 1000]
    assert months == ([] if when != "2026-12-01T00:00:00" else days)  # there no zone of less than a day helps
