"""What a job may be called."""

from __future__ import annotations

import pytest

from gridq.errors import ConfigError
from gridq.jobs.record import JobOptions, options_of


@pytest.mark.parametrize("name", ["n", "n" * 64, "ä" * 64, "Quarterly report: a/b @ 1+1_2-3.4"])
def test_names(name: str) -> None:
    assert options_of({"name": name}).name == name
    assert JobOptions(name=None).name is None


@pytest.mark.parametrize("name", ["", "n" * 65, "a\nb", "a\n", "a;b", "tab\t"])
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        options_of({"name": name})
    assert "name" in caught.value.path
