from __future__ import annotations

import pytest

from tests.cli_seats import CLIS
from tests.fakes.programs import FakeClis


@pytest.fixture(scope="module")
def fakes(tmp_path_factory: pytest.TempPathFactory) -> FakeClis:
    """A fake of every program."""
    return FakeClis(tmp_path_factory.mktemp("clis"), *CLIS)


@pytest.fixture
def on_path(fakes: FakeClis, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of this process finds the fakes."""
    for name, value in fakes.environ.items():
        monkeypatch.setenv(name, value)
