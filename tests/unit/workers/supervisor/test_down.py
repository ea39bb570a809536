"""`gridq down` with a stale record."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gridq.config.home import WORKER_RECORD
from gridq.config.settings import Settings
from gridq.errors import AlreadyRunning, ConfigError
from workers.cli.grid import app
from workers.machine.run_records import RunRecord
from workers.supervisor.down import stop_grid
from workers.supervisor.up import UpOptions, run, start_detached


@pytest.mark.parametrize(
    "record",
    [
        *("{", "[]", '{"parts": 1}'),
        '{"parts": [1, null, {"pid": 1}, {"pid": "x", "name": "a", "process_start": "b"}]}',
    ],
)
def test_an_invalid_record_stops_nothing(record: str, tmp_path: Path) -> None:
    (tmp_path / "grid.json").write_text(record)
    assert stop_grid(tmp_path) == {"pid": None, "parts": [], "killed": [], "left": None}


def test_a_worker_of_the_same_home_is_named_and_up_does_not_start_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRIDQ_HOME", str(tmp_path))
    record = RunRecord(tmp_path, WORKER_RECORD)
    try:
        record.write({})
        done = CliRunner().invoke(app, ["down"])
        assert done.exit_code == 0
        assert f"kill {os.getpid()}" in done.stdout
        assert stop_grid(tmp_path)["left"] == os.getpid()
        for start in (start_detached, partial(run, report=print, on_ready=print)):
            with pytest.raises(AlreadyRunning) as caught:
                start(Settings(home=tmp_path), UpOptions())
            assert f"kill {os.getpid()}" in (caught.value.fix or "")
    finally:
        record.close()


def test_a_log_that_cannot_be_written_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("")
    with pytest.raises(ConfigError, match=r"up\.log cannot be written"):
        start_detached(Settings(home=tmp_path), UpOptions())


def test_down_works_with_an_invalid_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.toml").write_text("drain = [")
    monkeypatch.setenv("GRIDQ_HOME", str(tmp_path))
    done = CliRunner().invoke(app, ["down"])
    assert (done.exit_code, done.stdout) == (0, f"gridq up does not run in {tmp_path}\n")
