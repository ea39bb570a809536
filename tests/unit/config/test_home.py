"""The module that every program of gridq needs says that Windows is not supported."""

from __future__ import annotations

import importlib.util
import sys

import pytest

from gridq.config import home
from gridq.errors import ConfigError


def test_on_windows_the_error_names_wsl_2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    spec = importlib.util.spec_from_file_location("home_on_windows", home.__file__)
    assert spec is not None
    assert spec.loader is not None
    with pytest.raises(ConfigError, match="does not run on Windows") as caught:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert "WSL 2" in (caught.value.fix or "")
