"""The mirror is a part of the deployment while the owner's seats file says so."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gridq.config.home import GRID_RECORD
from tests.conftest import GridEnv
from tests.waiting import wait_for
from workers.supervisor import model_sharing, programs
from workers.supervisor.children import Child
from workers.supervisor.deployment import Deployment
from workers.supervisor.model_sharing import update_mirror
from workers.supervisor.programs import Program


@pytest.fixture
def deployment(grid_env: GridEnv, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployment]:
    """A deployment whose mirror is a program that only waits."""
    program = (sys.executable, "-c", "import time; time.sleep(100)")
    monkeypatch.setattr(model_sharing, "Program", lambda name, _, env, log: Program(name, program, env, log))
    with Deployment(grid_env.settings, GRID_RECORD, lambda _: None) as found:
        yield found


def write_seats(deployment: Deployment, text: str) -> None:
    (Path(deployment.config.home) / "seats.toml").write_text(text)


def find(deployment: Deployment) -> Child | None:
    return deployment.supervisor.children.get(programs.MIRROR)


def get_process(deployment: Deployment) -> subprocess.Popen[bytes]:
    child = find(deployment)
    assert child is not None
    assert child.process is not None
    return child.process


def restarted(deployment: Deployment, pid: int) -> int | None:
    deployment.run_once(0.05)
    child = find(deployment)
    return child.process.pid if child and child.process and child.process.pid != pid else None


def test_the_mirror_follows_the_seats_file(deployment: Deployment) -> None:
    update_mirror(deployment)
    assert find(deployment) is None
    write_seats(deployment, '[gpu]\nshare_models = "127.0.0.1:8790"\n')
    update_mirror(deployment)
    pid = get_process(deployment).pid
    assert "127.0.0.1:8790" in deployment.descriptions[programs.MIRROR]

    update_mirror(deployment)
    deployment.run_once(0.05)
    assert get_process(deployment).pid == pid  # nothing has changed

    write_seats(deployment, '[gpu]\nshare_models = "127.0.0.1:8790"\nshare_gated = true\n')
    update_mirror(deployment)
    pid = wait_for(lambda: restarted(deployment, pid))
    update_mirror(deployment, restart=True)
    pid = wait_for(lambda: restarted(deployment, pid))

    child = find(deployment)
    assert child is not None
    child.gave_up_reason = "the port was taken"
    update_mirror(deployment)
    assert wait_for(lambda: restarted(deployment, pid))

    write_seats(deployment, "[gpu]\ngpus = false\n")
    update_mirror(deployment)
    wait_for(lambda: deployment.run_once(0.05) == [] and find(deployment) is None)
