"""Valid and invalid names of jobs."""

from __future__ import annotations

import pytest

from gridq.errors import ConfigError
from gridq.jobs.record import JobOptions, parse_options


@pytest.mark.parametrize("name", ["n", "n" * 64, "ä" * 64, "Quarterly report: a/b @ 1+1_2-3.4"])
def test_valid_job_names_are_accepted(name: str) -> None:
    assert parse_options({"name": name}).name == name
    assert JobOptions(name=None).name is None


@pytest.mark.parametrize("name", ["", "n" * 65, "a\nb", "a\n", "a;b", "tab\t"])
def test_invalid_job_names_are_refused(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_options({"name": name})
    assert "name" in caught.value.path


@pytest.mark.parametrize("name", ["deadline", "queue_timeout"])
def test_a_time_without_end_is_refused(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_options({name: float("inf")})
    assert name in caught.value.path
