"""What is logged where: `gridq up --narrate`, and Celery's `-l` and `-f`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.acceptance.homes import HomeFolder
from tests.conftest import GridEnv
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

PROMPT = "a prompt that no log may contain"


def test_up_narrates_into_its_logs(tmp_path: Path) -> None:
    home = HomeFolder(tmp_path)
    home.start("up", "--no-flower", "--no-gateway", "--narrate")
    try:
        home.ready()
        assert home.echo(PROMPT) == PROMPT
        log = home.path / "logs" / "bench.log"
        wait_for(lambda: "graph/bench_echo answered in" in log.read_text(), explain=log.read_text)
        assert PROMPT not in "".join(path.read_text() for path in log.parent.iterdir())
    finally:
        home.end()


@pytest.mark.parametrize(("arguments", "logged"), [(("-l", "INFO"), True), ((), False)])
def test_celerys_options_are_honoured(
    grid_env: GridEnv, tmp_path: Path, arguments: tuple[str, ...], logged: bool
) -> None:
    """`-l` takes precedence over GRIDQ_LOG_LEVEL, but its default does not; `-f` names the file."""
    log = tmp_path / "router.log"
    command = ["-A", "gridq.app", "worker", "-Q", "gridq:router", "-c", "1", "-f", str(log), *arguments]
    env = {**os.environ, **grid_env.environ(), "GRIDQ_LOG_LEVEL": "ERROR", "PYTHONWARNINGS": "ignore"}
    with subprocess.Popen(
        [sys.executable, "-m", "celery", *command], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as child:
        wait_for(lambda: grid_env.client.zcard(f"{grid_env.prefix}.seats") == 1)
        if logged:
            wait_for(lambda: "[info] seat live worker=" in log.read_text(), explain=log.read_text)
        child.terminate()
        assert child.wait(30) in (0, -signal.SIGTERM), "it may not handle the signal yet"
        assert child.stderr is not None
        assert child.stderr.read() == b""
    assert ("[info] seat live worker=" in log.read_text()) == logged
