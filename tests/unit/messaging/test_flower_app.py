"""Flower fitted to the grid, without its server: what the real one shows is in tests/acceptance."""

from __future__ import annotations

import asyncio
import stat
import threading
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tornado.web import HTTPError

from gridq.config import flower_login
from gridq.config.settings import Settings
from gridq.errors import ConfigError
from gridq.messaging import flower_app
from gridq.store.keys import Keys
from tests.conftest import GridEnv


def test_the_password_is_created_once_and_readable_by_its_owner_only(tmp_path: Path) -> None:
    config = Settings(home=tmp_path / "home")
    first = flower_login.read_password(config)
    assert len(first) >= 24
    assert flower_login.read_password(config) == first
    path = flower_login.get_password_file(config)
    assert path == tmp_path / "home" / "flower-password"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in path.parent.iterdir()] == ["flower-password"]


def test_concurrent_creators_get_the_same_password(tmp_path: Path) -> None:
    config = Settings(home=tmp_path)
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda: found.append(flower_login.read_password(config))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1


def test_a_password_file_readable_by_others_is_refused(tmp_path: Path) -> None:
    config = Settings(home=tmp_path)
    flower_login.read_password(config)
    flower_login.get_password_file(config).chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        flower_login.read_password(config)


def test_a_secret_file_is_read_whatever_its_mode(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("from-the-vault\n")
    secret.chmod(0o444)
    assert (
        flower_login.read_password(Settings(home=tmp_path, flower_password_file=secret)) == "from-the-vault"
    )


@pytest.mark.parametrize("text", ["", "\n", "two words", "tab\there", "ümlaut"])
def test_invalid_passwords_are_refused(tmp_path: Path, text: str) -> None:
    secret = tmp_path / "secret"
    secret.write_text(text)
    with pytest.raises(ConfigError):
        flower_login.read_password(Settings(home=tmp_path, flower_password_file=secret))


def test_a_missing_secret_is_refused_and_not_created(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        flower_login.read_password(Settings(home=tmp_path, flower_password_file=tmp_path / "secret"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("received", "started", "wait", "shown"),
    [
        (100.0, 100.25, 0.25, "250\N{NO-BREAK SPACE}ms"),
        (100.0, 103.5, 3.5, "3.50\N{NO-BREAK SPACE}s"),
        (100.0, None, None, None),
        (100.0, 99.0, 0.0, "0\N{NO-BREAK SPACE}ms"),
    ],
)
def test_a_task_shows_its_wait(
    received: float, started: float | None, wait: float | None, shown: str | None
) -> None:
    about = {"uuid": "j.0", "name": "g/s", "received": received, "started": started}
    assert flower_app.GridTask(**about).as_dict()["wait"] == wait
    assert flower_app.format_task(flower_app.GridTask(**about)).as_dict()["wait"] == shown


def test_a_task_event_does_not_count_as_heartbeat() -> None:
    worker = flower_app.GridWorker("bench@m")
    worker.event(None, time.time(), time.time())
    assert not worker.alive
    worker.event("heartbeat", time.time(), time.time(), {"freq": 2})
    assert worker.alive


def test_a_repeated_start_event_is_counted_once() -> None:
    state = flower_app.GridState()
    task = {"uuid": "j.0", "hostname": "cpu@m", "pid": 1, "clock": 1, "local_received": 100.0}
    begun, again = (
        [
            {**task, "type": "task-received", "name": "g/s", "timestamp": at, "retries": 0},
            {**task, "type": "task-started", "timestamp": at + 0.5},
        ]
        for at in (100.0, 109.0)
    )
    done = {**task, "type": "task-succeeded", "result": "", "runtime": 1.0, "timestamp": 101.5}
    for event in [*begun, *begun, done, *begun]:
        state.event(dict(event))
    assert state.counter["cpu@m"] == {"task-received": 1, "task-started": 1, "task-succeeded": 1}
    assert state.tasks["j.0"].state == "SUCCESS"
    for event in again:  # another attempt
        state.event(dict(event))
    assert state.counter["cpu@m"]["task-received"] == 2


def test_ended_workers_are_forgotten_and_others_kept() -> None:
    now = time.time()
    beats = {
        "live": [now],
        "slow": [now - flower_app.FORGET_SECONDS / 2],
        "killed": [now - flower_app.FORGET_SECONDS - 1],
        "left": [],
    }
    workers = {name: SimpleNamespace(heartbeats=each) for name, each in beats.items()}
    workers["leaves"] = SimpleNamespace(heartbeats=[], timestamp=now)
    state = SimpleNamespace(workers=dict(workers), counter={name: Counter() for name in (*beats, "gone")})
    inspected: dict[str, Any] = {name: {"timestamp": now} for name in (*beats, "answered")}
    inspected["silent"] = {"timestamp": now - flower_app.FORGET_SECONDS - 1}
    flower_app.forget_ended(state, inspected)
    assert set(state.workers) == {"live", "slow", "leaves"}
    assert set(state.counter) == {"live", "slow"}
    assert set(inspected) == {"live", "slow", "answered"}


def test_queue_lengths_are_stages_that_wait(grid_env: GridEnv) -> None:
    keys, client = Keys(grid_env.prefix), grid_env.client
    client.hset(keys("concurrency"), mapping={"bench:any": 4, "llm:any": 2, "gridq:pure": 8})
    client.sadd(keys("queues"), "bench:any", "gpu:cuda-8g")
    client.hset(keys("classes", "bench:any"), mapping={"0/0|": 3, "5/100|m.bench": 4})
    client.hset(keys("classes", "gpu:cuda-8g"), mapping={"0/0|": 1})
    client.lpush(keys.queue("bench:any"), "a wake-up", "another")
    client.zadd(keys("inbox"), {"a": 1, "b": 2})
    listed = {
        queue["name"]: queue for queue in asyncio.run(flower_app.PendingWork().queues(["seat:m.bench"]))
    }
    assert {name: queue["messages"] for name, queue in listed.items()} == {
        "bench:any": 7, "gpu:cuda-8g": 1, "llm:any": 0, "gridq:pure": 0, "gridq:router": 2,
    }  # fmt: skip
    assert [listed[name]["consumers"] for name in ("bench:any", "gpu:cuda-8g", "llm:any")] == [4, 0, 2]
    assert listed["gridq:router"]["consumers"] == 8  # a router's slots do both


def test_an_unreachable_server_is_a_503(grid_env: GridEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = flower_app.PendingWork()
    broker.config = Settings(broker_url="redis://:secret@127.0.0.1:1/0")
    with pytest.raises(HTTPError) as caught:
        asyncio.run(broker.queues())
    assert caught.value.status_code == 503
    assert "secret" not in str(caught.value)
