"""`python -m workers.process.node`: Celery's worker, without the rest of its command line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from gridq.config.settings import Settings
from workers.supervisor import programs

UNASKED = ("celery.bin.celery", "celery.bin.control", "flower", "tornado", "prompt_toolkit")
"""What the `celery` command imports for its other subcommands."""

LOADED = f"""
import atexit, runpy, sys
atexit.register(lambda: print("LOADED", *[name for name in {UNASKED} if name in sys.modules]))
runpy.run_module("workers.process.node", run_name="__main__", alter_sys=True)
"""


def run_command(*command: str, env: Mapping[str, str] = os.environ) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], env=dict(env), capture_output=True, text=True, timeout=60, check=False
    )


def test_the_node_accepts_the_options_of_celery_worker() -> None:
    own = run_command("-m", "workers.process.node", "workers", "--help")
    original = run_command("-m", "celery", "-A", "workers", "worker", "--help")
    assert (own.returncode, original.returncode) == (0, 0), own.stderr + original.stderr
    options = [
        result.stdout.partition("\n")[2] for result in (own, original)
    ]  # the first line names the program
    assert "--seat" in options[0]
    assert options[0] == options[1]


def test_without_an_app_the_usage_is_printed() -> None:
    for command in ((), ("--help",)):
        result = run_command("-m", "workers.process.node", *command)
        assert (result.returncode, result.stdout) == (2, "")
        assert (
            result.stderr == "The app must come first: python -m workers.process.node workers --seat NAME\n"
        )


def test_modules_of_other_subcommands_are_not_loaded(tmp_path: Path) -> None:
    program = programs.make_seat_worker(Settings(home=tmp_path), "cpu", tmp_path, {}, 1.0)
    assert program.command[1:3] == ("-m", "workers.process.node")
    done = run_command("-c", LOADED, *program.command[3:], env={**os.environ, "GRIDQ_LEASE_MS": "soon"})
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("config.invalid: GRIDQ_LEASE_MS is invalid")
    assert done.stdout.split() == ["LOADED"]
