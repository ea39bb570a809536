"""Engines that a seat's worker starts: port, device mask, environment, back-off, and their end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gridq.config.settings import settings
from gridq.errors import ConfigError
from tests.fakes.http_server import Handler, LocalServer
from tests.processes import is_running
from tests.waiting import wait_for
from workers.profiles.gpu import GpuProfile
from workers.profiles.gpu.running_engines import launched_engine
from workers.profiles.gpu.running_engines.engine_offers import EngineSeat
from workers.profiles.gpu.running_engines.engine_seat_runner import EngineSeatRunner
from workers.profiles.gpu.running_engines.engine_table import read_port
from workers.profiles.gpu.running_engines.launched_engine import LaunchedEngine

WITNESS = """
import json, os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
with open(sys.argv[1] + ".part", "w") as file:
    json.dump({"argv": sys.argv[2:], "env": dict(os.environ), "pid": os.getpid(), "child": child.pid}, file)
os.rename(sys.argv[1] + ".part", sys.argv[1])
time.sleep(600)
"""


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Any]:
    """Start engines; they end with the test."""
    engines: list[LaunchedEngine] = []

    def start(*command: str, **options: Any) -> tuple[LaunchedEngine, list[str]]:
        urls: list[str] = []
        options = {"env": {}, "devices": None, "pass_env": (), **options}
        engines.append(LaunchedEngine(command, tmp_path / "logs" / "engine.log", urls.append, **options))
        engines[-1].start()
        return engines[-1], urls

    yield start
    for engine in engines:
        engine.close()


def read(path: Path) -> Any:
    wait_for(path.exists)
    return json.loads(path.read_text())


def test_it_gets_its_port_its_device_and_no_secret(
    launch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    monkeypatch.setenv("HF_TOKEN", "hf-1")
    monkeypatch.setenv("GRIDQ_PREFIX", "x:")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    seen = tmp_path / "seen.json"
    engine, urls = launch(
        sys.executable, "-c", WITNESS, str(seen), devices=["GPU-1", "MIG-2"], pass_env=["HF_TOKEN"]
    )
    found = read(seen)
    port = urls[0].rpartition(":")[2]
    assert found["argv"] == ["--host", "127.0.0.1", "--port", port]
    assert found["env"]["CUDA_VISIBLE_DEVICES"] == "GPU-1,MIG-2"
    assert found["env"]["HF_TOKEN"] == "hf-1"
    assert not {"OPENAI_API_KEY", "GRIDQ_PREFIX"} & set(found["env"])
    assert "PYTHONPATH" not in found["env"]  # an engine's Python has packages of its own
    assert "GRIDQ_OWNER" in found["env"]
    assert engine.reason == ""
    engine.close()
    wait_for(lambda: not is_running(found["pid"]))
    wait_for(lambda: not is_running(found["child"]))  # its whole group


def test_a_place_for_the_port_is_filled_and_nothing_is_added(launch: Any, tmp_path: Path) -> None:
    seen = tmp_path / "seen.json"
    command = (sys.executable, "-c", WITNESS, str(seen), "--listen=127.0.0.1:{port}", "$HOME; true")
    _, urls = launch(*command, env={"OLLAMA_HOST": "127.0.0.1:{port}"})
    found = read(seen)
    port = urls[0].rpartition(":")[2]
    assert found["argv"] == [f"--listen=127.0.0.1:{port}", "$HOME; true"]  # no shell
    assert found["env"]["OLLAMA_HOST"] == f"127.0.0.1:{port}"


def test_one_that_ends_is_started_again_later_each_time_and_then_left_alone(
    launch: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(launched_engine, "FIRST_DELAY_SECONDS", 0.05)
    monkeypatch.setattr(launched_engine, "MAX_EXITS", 3)
    monkeypatch.setattr(launched_engine, "WINDOW_SECONDS", 3600.0)
    engine, urls = launch(sys.executable, "-c", "print('out of memory'); raise SystemExit(3)")
    wait_for(lambda: len(urls) == 3 and engine.reason)
    assert "code 3" in engine.reason
    assert "out of memory" not in engine.reason  # which others than its owner read
    time.sleep(0.5)
    assert len(urls) == 3
    assert "out of memory" in (tmp_path / "logs" / "engine.log").read_text()


def test_a_port_that_is_taken_meanwhile_costs_one_try(
    launch: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Another program gets the port between its choice and the engine's start, and answers there."""
    monkeypatch.setattr(launched_engine, "FIRST_DELAY_SECONDS", 0.05)
    choose_port = launched_engine.choose_port
    with LocalServer(Handler) as other:
        ports = [read_port(other.url)]
        monkeypatch.setattr(launched_engine, "choose_port", lambda: ports.pop() if ports else choose_port())
        engine, urls = launch(sys.executable, "-m", "http.server", "--bind", "127.0.0.1", "{port}")
        wait_for(lambda: len(urls) == 2 and not engine.reason)
        assert urls[0] == other.url != urls[1]
    assert "in use" in (tmp_path / "logs" / "engine.log").read_text()


def test_a_program_or_device_that_does_not_exist_is_a_reason(launch: Any) -> None:
    engine, _ = launch("/nonexistent/engine")
    wait_for(lambda: "127" in engine.reason)
    other, urls = launch(sys.executable, "-c", "pass", devices=["gpu77"])
    wait_for(lambda: "gpu77" in other.reason)
    assert urls == []


def test_it_ends_with_a_worker_that_is_killed(tmp_path: Path) -> None:
    seen = tmp_path / "seen.json"
    worker = f"""
import sys, time
from pathlib import Path
from workers.profiles.gpu.running_engines.launched_engine import LaunchedEngine
command = [sys.executable, "-c", {WITNESS!r}, {str(seen)!r}]
LaunchedEngine(command, Path({str(tmp_path)!r}) / "e.log", print, env={{}}, devices=None, pass_env=()).start()
time.sleep(600)
"""
    process = subprocess.Popen([sys.executable, "-c", worker], stdout=subprocess.DEVNULL)
    try:
        found = read(seen)
    finally:
        process.kill()
        process.wait()
    wait_for(lambda: not is_running(found["pid"]))
    wait_for(lambda: not is_running(found["child"]))


SMALL_ENGINE = """
import sys
from tests.fakes.engine_servers import FakeModel, FakeVllm
with FakeVllm(FakeModel("org/m"), port=int(sys.argv[1])) as engine:
    import time; time.sleep(600)
"""


def test_a_seat_starts_its_engine_offers_its_models_and_restarts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRIDQ_HOME", str(tmp_path))
    settings.cache_clear()
    monkeypatch.setattr(launched_engine, "FIRST_DELAY_SECONDS", 0.05)
    table = {"name": "box", "command": [sys.executable, "-c", SMALL_ENGINE, "{port}"], "concurrency": 3}
    [offer] = GpuProfile().probe({"cpu": False, "gpus": False, "engines": [table]}).found
    assert (offer.name, offer.concurrency, offer.capability["models"]) == ("box", 3, [])
    changes: list[int] = []
    runner = EngineSeatRunner(
        GpuProfile.Capability.model_validate(offer.capability),  # type: ignore[arg-type]
        EngineSeat.model_validate(offer.config),
        lambda: changes.append(1),
    )
    try:
        assert runner.fault
        wait_for(lambda: not runner.fault)
        assert [model.name for model in runner.capability.models] == ["org/m"]
        first = runner.capability.name
        launcher = runner._launched._process  # type: ignore[union-attr]
        assert launcher is not None
        os.kill(launcher.pid, signal.SIGKILL)
        wait_for(lambda: not runner.fault and runner.capability.name != first)  # at another port
    finally:
        runner.close()
        settings.cache_clear()


@pytest.mark.parametrize(
    "table",
    [
        {"command": ["vllm", "serve"]},
        {"name": "a", "command": ["vllm"], "url": "http://127.0.0.1:9"},
        {"name": "a", "command": "vllm serve"},
        {"name": "a"},
    ],
)
def test_a_wrong_table_is_refused(table: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        GpuProfile().probe({"cpu": False, "gpus": False, "engines": [table]})
    assert str(caught.value.details["path"]).startswith("gpu.engines[0]")
