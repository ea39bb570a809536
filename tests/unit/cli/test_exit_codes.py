"""Exit codes and error output of commands."""

from __future__ import annotations

from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from gridq import errors
from gridq.cli.exit_codes import (
    EPILOG,
    CommandGroup,
    DebugOption,
    exit_on_job_error,
    get_exit_code,
    to_one_line,
)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ConfigError("x"), 2),
        (errors.BrokerUnreachable("x"), 2),
        (errors.InputTooLarge("x"), 2),
        (errors.UnknownStage("x"), 3),
        (errors.InvalidJson("x"), 3),
        (errors.NoLiveSeat("x"), 4),
        (errors.AgentMoneyExceeded("x"), 6),
        (errors.KeyMissing("x"), 6),
        (errors.WaitTimeout("x"), 124),
    ],
)
def test_each_error_has_its_code(error: errors.GridError, code: int) -> None:
    assert get_exit_code(error) == code
    assert f"{code} " in EPILOG


def test_an_error_is_one_line_without_control_characters() -> None:
    assert to_one_line("a\n  b\x1b[31mc\td\x9b") == "a b [31mc d "
    assert to_one_line("grün …") == "grün …"


def program(error: BaseException) -> typer.Typer:
    app = typer.Typer(cls=CommandGroup, rich_markup_mode=None, pretty_exceptions_enable=False)

    @app.callback()
    def root(debug: DebugOption = False) -> None:
        """The group."""

    @app.command()
    def fail(debug: DebugOption = False) -> None:
        raise error

    return app


@pytest.mark.parametrize("arguments", [["--debug", "fail"], ["fail", "--debug"]])
def test_debug_shows_the_traceback_in_any_position(arguments: list[str]) -> None:
    app = program(errors.ConfigError("broken", {"fix": "mend it"}))
    plain = CliRunner().invoke(app, ["fail"])
    assert plain.exit_code == 2
    assert plain.stderr == "error: config.invalid: broken. Fix: mend it\n"
    assert plain.stdout == ""
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert "Traceback" in result.stderr
    assert result.stderr.endswith(plain.stderr)


def test_ctrl_c_exits_with_130() -> None:
    assert CliRunner().invoke(program(KeyboardInterrupt()), ["fail"]).exit_code == 130


def test_the_error_of_a_job_is_printed_and_exits_with_1(capsys: Any) -> None:
    raised: list[errors.GridError] = []
    with pytest.raises(typer.Exit) as caught, exit_on_job_error(raised.append):
        # An error of the graph as well: it came from the grid, where the graph had been accepted.
        raise errors.TypeMismatch("no")
    assert caught.value.exit_code == 1
    assert [type(error) for error in raised] == [errors.TypeMismatch]
    assert capsys.readouterr().err == "error: graph.type_mismatch: no\n"


@pytest.mark.parametrize("error", [errors.WaitTimeout("late"), errors.BrokerUnreachable("away")])
def test_errors_that_only_end_the_waiting_propagate(error: errors.GridError) -> None:
    with pytest.raises(type(error)), exit_on_job_error():
        raise error
