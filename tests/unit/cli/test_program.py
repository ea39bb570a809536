"""The program as a whole: its start, its help, its plug-ins."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from gridq import cli
from gridq.cli.command_tree import CommandTree
from gridq.config.home import GRID_RECORD
from tests.conftest import GridEnv
from workers.supervisor.control_socket import ControlServer

OURS = (
    "run",
    "validate",
    "explain",
    "jobs",
    "job",
    "cancel",
    "workers",
    "seats",
    "queues",
    "drain",
)
OF_WORKERS = ("models", "gpus")
HEAVY = ("celery", "kombu", "redis", "pydantic", "rich", "httpx", "xllamacpp", "asyncio")
OTHERS = (
    "gridq.cli.commands.run",
    "gridq.cli.commands.jobs",
    "gridq.cli.commands.keys",
    "workers.cli.chaos",
    "workers.cli.worker",
)


def run_new_process(*arguments: str, home: Path | None = None, watched: tuple[str, ...] = HEAVY) -> str:
    """Return the output of a new process and, on its last line, which modules of `watched` it loaded."""
    script = f"""
import sys
from gridq.cli import main
sys.argv = ["gridq", *{arguments!r}]
try:
    main()
finally:
    print("loaded", *sorted(set({watched!r}) & set(sys.modules)))
"""
    env = os.environ | ({"GRIDQ_HOME": str(home)} if home else {})
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=env)
    assert done.stderr == ""
    return done.stdout


def test_status_loads_no_heavy_module_and_no_other_command(
    tmp_path: Path,
) -> None:
    control = ControlServer(tmp_path, GRID_RECORD, lambda: {"grid": {}, "server": "redis://127.0.0.1:1/0"})
    try:
        output = run_new_process("status", "--json", home=tmp_path, watched=HEAVY + OTHERS)
        assert output.splitlines()[-1] == "loaded"
    finally:
        control.close()


def test_help_loads_no_heavy_module() -> None:
    output = run_new_process("--help")
    assert output.splitlines()[-1] == "loaded"
    for command in (*OURS, *OF_WORKERS, "demo", "probe"):
        assert f"\n  {command} " in output
    assert "Exit codes: 0 success" in output


@pytest.mark.parametrize("command", OURS + OF_WORKERS)
def test_every_command_has_json_and_explains_exit_codes(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CommandTree, "modules", {**CommandTree.modules})
    cli.load_commands()
    done = CliRunner().invoke(cli.app, [command, "--help"])
    assert done.exit_code == 0
    assert "--json" in done.stdout
    assert "--debug" in done.stdout
    assert "124 timed out" in " ".join(done.stdout.split())


def test_version_option_prints_the_version() -> None:
    done = CliRunner().invoke(cli.app, ["--version"])
    assert done.exit_code == 0
    assert done.stdout.startswith("gridq 0.")


@pytest.mark.parametrize("arguments", [["nothing"], ["run"], ["run", "g.json", "--timeout", "soon"]])
def test_a_usage_error_exits_with_2(arguments: list[str]) -> None:
    done = CliRunner().invoke(cli.app, arguments)
    assert done.exit_code == 2
    assert done.stderr


def test_a_broken_plug_in_is_skipped_with_a_warning(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    broken = EntryPoint("a", "no_such_package_here:register", cli.ENTRY_POINT_GROUP)
    monkeypatch.setattr(cli, "entry_points", lambda group: [broken])
    cli.load_commands()
    assert "no_such_package_here" in capsys.readouterr().err


def greeter(app: typer.Typer) -> None:
    """A plug-in of somebody else."""

    @app.command(short_help="Say hello.")
    def hello() -> None:
        typer.echo("hello")


def test_a_plug_in_adds_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "entry_points", lambda group: [EntryPoint("a", f"{__name__}:greeter", group)])
    monkeypatch.setattr(cli.app, "registered_commands", [])
    cli.load_commands()
    assert CliRunner().invoke(cli.app, ["hello"]).stdout == "hello\n"
    listed = CliRunner().invoke(cli.app, ["--help"]).stdout
    assert "\n  hello " in listed
    assert "\n  cancel " in listed


def test_an_unknown_command_gets_a_suggestion() -> None:
    done = CliRunner().invoke(cli.app, ["cancle"])
    assert done.exit_code == 2
    assert "No such command 'cancle'. Did you mean 'cancel'" in done.stderr


def test_graph_and_input_cannot_both_be_stdin() -> None:
    done = CliRunner().invoke(cli.app, ["run", "-", "--input", "-"])
    assert done.exit_code == 2
    assert "cannot both come from stdin" in done.stderr


@pytest.mark.parametrize("option", ["--json", "--nonsense"])
def test_a_usage_error_with_json_is_a_document(option: str) -> None:
    done = CliRunner().invoke(cli.app, ["jobs", "--nonsense", option])
    assert done.exit_code == 2
    assert "No such option: --nonsense" in done.stderr
    output = json.loads(done.stdout)["error"]["message"] if option == "--json" else done.stdout
    assert output == ("No such option: --nonsense" if option == "--json" else "")


def test_debug_shows_where_an_error_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments in (["--debug", "run", "none.json"], ["run", "none.json", "--debug"]):
        done = CliRunner().invoke(cli.app, arguments)
        assert done.exit_code == 2
        assert "Traceback" in done.stderr
        assert done.stderr.splitlines()[-1].startswith("error: config.invalid")
    assert "Traceback" not in CliRunner().invoke(cli.app, ["run", "none.json"]).stderr


def test_a_shell_can_be_given_the_completion() -> None:
    done = CliRunner().invoke(cli.app, ["--help"])
    assert "--install-completion" in done.stdout


def test_an_argument_that_is_not_utf8_is_a_one_line_error(grid_env: GridEnv) -> None:
    done = CliRunner().invoke(cli.app, ["job", "\udcff\udcfe"])
    assert (done.exit_code, done.stderr) == (
        2,
        "error: config.invalid: An argument is not UTF-8 text (at command line)\n",
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_a_one_line_error() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", "from gridq.cli import main; main()", "--help"],
            stdout=full, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
    assert (done.returncode, done.stderr) == (2, "error: No space left on device\n")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, 143)])
def test_a_signal_during_a_finalizer_is_not_lost(number: signal.Signals, code: int) -> None:
    program = f"""
import os, signal, sys, time
from gridq.cli.interrupts import install_signal_handlers

class Struck:
    def __del__(self):
        os.kill(os.getpid(), {int(number)})
        for _ in range(1000):
            pass

def end(number, frame):
    raise SystemExit(128 + number)

signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGTERM, end)
install_signal_handlers()
Struck()
time.sleep(20)
print("lost")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=15, check=False
    )
    assert (done.returncode, done.stdout) == (code, "")


STRUCK = """
import os, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from gridq import cli

def struck(*_, **__):
    try:
        os.kill(os.getpid(), signal.SIGINT)
        while True:
            pass
    except KeyboardInterrupt:
        {then}

class Point:
    name = value = "plug-in"
    load = struck

setattr(cli, "{where}", (lambda **_: [Point]) if "{where}" == "entry_points" else struck)
cli.main()
"""


@pytest.mark.parametrize("then", ["raise", "raise ValueError('Error building a validator') from None"])
@pytest.mark.parametrize("where", ["app", "load_commands", "entry_points"])
def test_ctrl_c_never_shows_a_traceback(where: str, then: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STRUCK.format(where=where, then=then)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 130
    assert "Traceback" not in done.stderr
