"""A Celery program that cannot start."""

from __future__ import annotations

import pytest

from gridq.errors import ConfigError
from gridq.process import startup_errors
from gridq.store.connection import connect


def test_a_startup_error_is_one_line_and_exits_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended, startup_errors.exit_on_error():
        raise ConfigError("It is wrong", {"fix": "put it right"})
    assert ended.value.code == 2
    assert capsys.readouterr() == ("", "config.invalid: It is wrong. Fix: put it right\n")


def test_a_server_error_is_reported_as_a_gridq_error(capsys: pytest.CaptureFixture[str]) -> None:
    with (
        pytest.raises(SystemExit),
        startup_errors.exit_on_error(),
        connect("redis://127.0.0.1:1/0", retry=False) as client,
    ):
        client.ping()
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("broker.unreachable: ")


def test_any_other_exception_ends_the_program_with_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended, startup_errors.exit_on_error():
        raise ZeroDivisionError
    assert ended.value.code == 1
    assert "ZeroDivisionError" in capsys.readouterr().err
