"""A Celery program that cannot start."""

from __future__ import annotations

import pytest

from gridq import refusal
from gridq.errors import ConfigError
from gridq.store.connection import connect


def test_an_error_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended, refusal.told():
        raise ConfigError("It is wrong", {"fix": "put it right"})
    assert ended.value.code == 2
    assert capsys.readouterr() == ("", "config.invalid: It is wrong. Fix: put it right\n")


def test_a_fault_of_the_server_is_told_as_gridqs_error(capsys: pytest.CaptureFixture[str]) -> None:
    with (
        pytest.raises(SystemExit),
        refusal.told(),
        connect("redis://127.0.0.1:1/0", retry=False) as client,
    ):
        client.ping()
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("broker.unreachable: ")


def test_a_fault_of_our_own_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError), refusal.told():
        raise ZeroDivisionError
