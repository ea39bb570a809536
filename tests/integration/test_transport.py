"""A real Celery worker on a real server: raw messages, malformed messages and outages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
from celery.contrib.testing.worker import start_worker

from gridq.app import app as grid_app
from gridq.config.settings import Settings
from gridq.errors import BrokerRefused, BrokerUnreachable
from gridq.messaging import transport
from gridq.messaging.wake_ups import PLACEHOLDER, make_task_template
from gridq.router.router import Router
from gridq.store.connection import connect, translate_errors
from tests.conftest import GridEnv
from tests.integration.witness_app import make, notes
from tests.waiting import wait_for
from workers.supervisor.embedded_server import EmbeddedServer

QUEUE = "llm:a"


@contextmanager
def _worker(environ: dict[str, str], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a worker of two threads as a process within the block."""
    code = (
        "import sys; from tests.integration.witness_app import make;"
        "make().worker_main(['worker', '-Q', sys.argv[1], '-c', '2', '-l', 'INFO', '--without-mingle'])"
    )
    command = [sys.executable, "-c", code, QUEUE]
    with (folder / "worker.log").open("wb") as log:
        child = subprocess.Popen(command, env={**os.environ, **environ}, stdout=log, stderr=log)
    try:
        wait_for(lambda: b" ready." in (folder / "worker.log").read_bytes())
        yield child
    finally:
        child.kill()
        child.wait()


def _push(client: redis.Redis, prefix: str, text: str, task_id: str) -> None:
    client.lpush(prefix + QUEUE, text.replace(PLACEHOLDER, task_id))


@pytest.mark.usefixtures("key_hygiene")
def test_a_worker_runs_a_message_that_was_pushed_raw(grid_env: GridEnv, tmp_path: Path) -> None:
    app = make()
    text = make_task_template(app, "witness.run", QUEUE, (str(tmp_path), PLACEHOLDER))
    with start_worker(app, pool="threads", concurrency=2, perform_ping_check=False, queues=[QUEUE]):
        for task_id in ("first", "second"):
            _push(grid_env.client, grid_env.prefix, text, task_id)
        assert app.AsyncResult("first").get(timeout=30) == "first"
        assert app.AsyncResult("second").get(timeout=20) == "second"
    assert sorted(notes(tmp_path)) == ["end first", "end second", "start first", "start second"]
    keys = {
        key.decode().removeprefix(grid_env.prefix) for key in grid_env.client.scan_iter(f"{grid_env.prefix}*")
    }
    assert {"celery-task-meta-first", "celery-task-meta-second"} <= keys
    assert not [key for key in keys if QUEUE in key], "no queue, no table of bindings is left"
    app.close()


def test_what_a_message_has_begun_goes_on_if_it_does_not_reach_its_task(
    grid_env: GridEnv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the slot that its claim holds would never be free again."""
    ended = threading.Event()
    monkeypatch.setitem(transport.on_arrival, "witness.run", lambda: ended.set)
    app = make()
    good = make_task_template(app, "witness.run", QUEUE, (str(tmp_path), PLACEHOLDER))
    with start_worker(app, pool="threads", concurrency=1, perform_ping_check=False, queues=[QUEUE]):
        grid_env.client.lpush(grid_env.prefix + QUEUE, '{"headers": {"task": "witness.run"}}')
        assert ended.wait(20)
        _push(grid_env.client, grid_env.prefix, good, "next")
        assert app.AsyncResult("next").get(timeout=20) == "next"
    app.close()


@pytest.mark.parametrize(
    ("part", "field", "value"),
    [
        ("headers", "id", None),
        ("headers", "id", {"a": 1}),
        ("", "body", None),
        ("properties", "delivery_info", 5),
        ("properties", "delivery_tag", ["x"]),
    ],
)
def test_messages_that_celery_cannot_read_leave_room_for_others(
    grid_env: GridEnv, tmp_path: Path, part: str, field: str, value: object
) -> None:
    """A worker takes only as many messages as it has slots before it acknowledges one."""
    app = make()
    good = make_task_template(app, "witness.run", QUEUE, (str(tmp_path), PLACEHOLDER))
    foreign = json.loads(good.replace(PLACEHOLDER, "foreign"))
    place = foreign[part] if part else foreign
    if value is None and part:
        del place[field]
    else:
        place[field] = value
    with start_worker(app, pool="threads", concurrency=2, perform_ping_check=False, queues=[QUEUE]):
        for number in range(3):
            _push(grid_env.client, grid_env.prefix, json.dumps(foreign).replace("foreign", f"f{number}"), "")
        _push(grid_env.client, grid_env.prefix, good, "next")
        assert app.AsyncResult("next").get(timeout=20) == "next"
    assert not grid_env.client.exists(f"{grid_env.prefix}unacked")
    app.close()


def test_a_routers_wake_up_leaves_the_rest_to_a_slots_thread(grid_env: GridEnv) -> None:
    router = Router(grid_app, 1)
    router.session.start()
    try:
        rest = router.answer_wake_up()
        rest()
        assert router.session.busy == 0
    finally:
        router.session.stop(within=0)


def test_the_envelope_is_what_apply_async_sends(grid_env: GridEnv) -> None:
    app = make()
    app.send_task("witness.run", ("folder", PLACEHOLDER), queue=QUEUE, ignore_result=False)
    sent = json.loads(grid_env.client.rpop(grid_env.prefix + QUEUE))
    made = json.loads(make_task_template(app, "witness.run", QUEUE, ("folder", PLACEHOLDER)))
    assert sent.keys() == made.keys()
    task_id = sent["headers"]["id"]
    for message in (sent, made):
        for field in ("argsrepr", "kwargsrepr", "origin"):
            message["headers"].pop(field)
        for field in ("delivery_tag", "reply_to"):
            message["properties"].pop(field)
    assert json.loads(json.dumps(sent).replace(task_id, PLACEHOLDER)) == made
    app.close()


def test_every_program_makes_the_same_envelope(grid_env: GridEnv) -> None:
    code = (
        "from tests.integration.witness_app import make;"
        "from gridq.messaging.wake_ups import make_task_template;"
        f"print(make_task_template(make(), 'witness.run', '{QUEUE}', ('x',)))"
    )
    other = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    )
    assert other.stdout.strip() == make_task_template(make(), "witness.run", QUEUE, ("x",))


@pytest.mark.slow
def test_a_worker_survives_a_restart_of_its_server_and_runs_nothing_twice(tmp_path: Path) -> None:
    with EmbeddedServer(appendonly=True) as server, connect(server.url) as client:
        environ = {"GRIDQ_BROKER_URL": server.url, "GRIDQ_PREFIX": "w:"}
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environ.items():
                patch.setenv(name, value)
            text = make_task_template(make(), "witness.run", QUEUE, (str(tmp_path), PLACEHOLDER, True))
        with _worker(environ, tmp_path) as worker:
            # Late acknowledgement, one task in flight and a free slot: here the stock transport ends the
            # worker.
            _push(client, "w:", text, "one")
            wait_for(lambda: notes(tmp_path) == ["start one"])
            server.kill()
            wait_for(lambda: b"onnection to broker lost" in (tmp_path / "worker.log").read_bytes())
            server.start()
            _push(client, "w:", text, "two")
            wait_for(lambda: "start two" in notes(tmp_path))
            assert worker.poll() is None
            for peer in client.client_list():
                if peer["cmd"] != "client|list":
                    client.client_kill_filter(_id=peer["id"])
            _push(client, "w:", text, "three")
            (tmp_path / "go").touch()
            wait_for(lambda: "end three" in notes(tmp_path))
            wait_for(lambda: len(notes(tmp_path)) >= 6)
            time.sleep(1)
            assert worker.poll() is None
        assert sorted(notes(tmp_path)) == sorted(
            f"{x} {y}" for x in ("start", "end") for y in ("one", "two", "three")
        )
        assert client.exists("w:unacked", "w:unacked_index", f"w:{QUEUE}") == 0


def test_a_closed_channel_fails_as_a_connection(grid_env: GridEnv) -> None:
    app = make()
    with app.connection_for_write() as connection:
        channel = connection.default_channel
        assert channel.do_restore is False
        transport = connection.transport
        transport.client = None
        with pytest.raises(redis.ConnectionError):
            channel._connparams()
        transport.client = connection
    app.close()


def test_publishing_without_a_server_fails_soon_and_plainly(
    monkeypatch: pytest.MonkeyPatch, grid_env: GridEnv
) -> None:
    app = make()
    app.conf.broker_url = "redis://:secret@127.0.0.1:1/0"
    with pytest.raises(BrokerUnreachable) as caught, translate_errors("redis://:secret@127.0.0.1:1/0"):
        app.send_task("witness.run", (), queue=QUEUE, ignore_result=True)
    assert "secret" not in str(caught.value)
    app.close()


def test_publishing_with_a_wrong_password_is_refused(grid_env: GridEnv, server: EmbeddedServer) -> None:
    app = make()
    app.conf.broker_url = f"redis://:wrong@127.0.0.1:{server.port}/0"
    with pytest.raises(BrokerRefused), translate_errors():
        app.send_task("witness.run", (), queue=QUEUE, ignore_result=True)
    app.close()


def test_a_round_trip_over_a_unix_socket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gridq.app import server_options

    class Unix(EmbeddedServer):
        def _config(self) -> bytes:
            return super()._config() + b"unixsocket s.sock\n"

    with Unix() as server:
        url = f"unix://:{server.password}@{server.folder}/s.sock?db=1"
        app = make()
        app.conf.update(server_options(Settings(broker_url=url, prefix="u:")))
        with start_worker(app, pool="threads", concurrency=1, perform_ping_check=False, queues=[QUEUE]):
            result = app.send_task("witness.run", (str(tmp_path), "x"), queue=QUEUE)
            assert result.get(timeout=20) == "x"
        with connect(url) as client:
            assert client.ttl(f"u:celery-task-meta-{result.id}") > 0
        app.close()


@pytest.mark.parametrize("_round", [1, 2])
def test_the_app_follows_the_settings(grid_env: GridEnv, _round: int) -> None:
    from gridq.app import app

    app.send_task("nobody.runs", queue=QUEUE, ignore_result=True)
    app.backend.mark_as_done("an-id", {"answer": 42})
    assert grid_env.client.llen(grid_env.prefix + QUEUE) == 1
    assert app.AsyncResult("an-id").get(timeout=10) == {"answer": 42}
    assert grid_env.client.ttl(f"{grid_env.prefix}celery-task-meta-an-id") > 0


POISON = (b"not json", b"{}", b"[]", b"null", b"5", b'{"body":"x","headers":{},"properties":{}}', b"\xff\xfe")


def test_a_worker_survives_malformed_messages(grid_env: GridEnv, tmp_path: Path) -> None:
    app = make()
    made = json.loads(make_task_template(app, "witness.run", QUEUE, (str(tmp_path), "x")))
    odd = [
        {**made, "body": "[[],{},{}"},
        {**made, "headers": None},
        {**made, "content-type": "application/data"},
    ]
    text = make_task_template(app, "witness.run", QUEUE, (str(tmp_path), PLACEHOLDER))
    with _worker(grid_env.environ(), tmp_path) as child:
        grid_env.client.lpush(grid_env.prefix + QUEUE, *POISON, *map(json.dumps, odd))
        _push(grid_env.client, grid_env.prefix, text, "good")
        wait_for(lambda: notes(tmp_path) or child.poll() is not None)
        assert notes(tmp_path)[0] == "start good"
        assert child.poll() is None
        assert not grid_env.client.exists(grid_env.prefix + QUEUE)
    app.close()
