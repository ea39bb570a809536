from __future__ import annotations

import pytest

from tests.fakes.programs import FakePrograms
from tests.program_seats import PROGRAM_NAMES


@pytest.fixture(scope="module")
def fakes(tmp_path_factory: pytest.TempPathFactory) -> FakePrograms:
    """A fake of every program."""
    return FakePrograms(tmp_path_factory.mktemp("programs"), *PROGRAM_NAMES)


@pytest.fixture
def on_path(fakes: FakePrograms, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of this process finds the fakes."""
    for name, value in fakes.environ.items():
        monkeypatch.setenv(name, value)
