"""`gridq chaos` in a checkout, and without one."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gridq.errors import ConfigError
from workers.cli.chaos import add_checkout_to_path


def test_without_a_checkout_the_error_names_the_fix(tmp_path: Path) -> None:
    before = list(sys.path)
    with pytest.raises(ConfigError) as caught:
        add_checkout_to_path(tmp_path)
    assert (caught.value.code, caught.value.details["path"]) == ("config.invalid", str(tmp_path))
    assert "pip install -e" in (caught.value.fix or "")
    assert sys.path == before


def test_the_checkout_is_importable_from_any_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(__file__).parents[4]
    monkeypatch.setattr(sys, "path", ["/elsewhere"])
    add_checkout_to_path()
    add_checkout_to_path()
    assert sys.path == [str(root), "/elsewhere"]
