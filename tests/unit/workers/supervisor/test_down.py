"""`gridq down` with a stale record."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from gridq.config.settings import Settings
from gridq.errors import ConfigError
from workers.cli.grid import app
from workers.supervisor.down import stop_grid
from workers.supervisor.up import UpOptions, start_detached


@pytest.mark.parametrize(
    "record",
    [
        *("{", "[]", '{"parts": 1}'),
        '{"parts": [1, null, {"pid": 1}, {"pid": "x", "name": "a", "process_start": "b"}]}',
    ],
)
def test_an_invalid_record_stops_nothing(record: str, tmp_path: Path) -> None:
    (tmp_path / "grid.json").write_text(record)
    assert stop_grid(tmp_path) == {"pid": None, "parts": [], "killed": []}


def test_a_log_that_cannot_be_written_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("")
    with pytest.raises(ConfigError, match=r"up\.log cannot be written"):
        start_detached(Settings(home=tmp_path), UpOptions())


def test_down_works_with_an_invalid_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.toml").write_text("drain = [")
    monkeypatch.setenv("GRIDQ_HOME", str(tmp_path))
    done = CliRunner().invoke(app, ["down"])
    assert (done.exit_code, done.stdout) == (0, f"gridq up does not run in {tmp_path}\n")
