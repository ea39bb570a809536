"""Each fault of Celery's stock Redis transport that was reproduced, and the test that shows that gridq does
not have it: a test of this file, or of the file that is named.

- A message that was popped is lost with its worker: `test_a_message_lost_with_its_consumer_costs_no_job`.
- kill -9 leaves a message in `unacked` for an hour: `test_a_killed_worker_leaves_no_unacknowledged_message`.
- A task longer than the visibility time-out runs again: `test_a_task_longer_than_the_visibility_timeout_…`.
- A connection that drops while a task runs runs it twice: `test_connections` [cut, client_kill];
  `test_transport`: `test_a_worker_survives_a_restart_of_its_server_…`.
- A server that goes while a task runs ends the worker: the same, and `test_connections` [kill, away].
- On a half-open connection nothing runs for minutes: `test_connections` [swallow, stall];
  `test_stuck_consumer`.
- A fault of the result backend fails a task that never ran: `test_an_answer_that_cannot_be_written_…`.
- Time limits and revoke do nothing on threads: `test_times`; `test_grid`:
  `test_celerys_revoke_cancels_the_job`.
- Every way to stop waits for the task's end: `test_ending`.
- A chain's message grows with the chain: `test_a_message_does_not_grow_…`.
- A failure, or a lost message, within a chord of chains waits for ever: `test_grid`:
  `test_a_failure_reaches_get_…`; the first one of this file.
- A link that is delivered twice runs the next one twice: `test_a_wake_up_that_comes_twice_…`.
- `rediss://` accepts any certificate: `test_app`: `test_rediss_verifies_unless_told_otherwise`.
- A queue's priority starves others: what waits stands in pending sets, `tests/unit/store/test_claim`.
"""

from __future__ import annotations

import json
import secrets
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from celery.contrib.testing.worker import start_worker

from gridq.app import app
from gridq.client import Client
from gridq.messaging.wake_ups import GRAPH_TASK, PLACEHOLDER, STAGE_TASK, make_task_template
from gridq.protocol.queue_names import ROUTER
from gridq.tasks import run_graph
from tests.acceptance.grids import WholeGrid, whole
from tests.builders import seq, stage
from tests.conftest import GridEnv
from tests.integration.witness_app import make, notes
from tests.waiting import wait_for
from workers.supervisor.embedded_server import EmbeddedServer
from workers.supervisor.grid_processes import GridProcesses

pytestmark = pytest.mark.slow

ECHO = stage("bench_echo")
SLEEP = stage("bench_sleep", ms=1500)


@pytest.fixture(scope="module")
def grid(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeGrid]:
    """A router and a bench seat of two slots. Each test leaves them live."""
    with whole(tmp_path_factory.mktemp("stock"), server.url, {"bench": 2}, drain=1) as made:
        yield made


@pytest.fixture
def home(grid: WholeGrid) -> GridProcesses:
    return grid.home


@pytest.fixture
def client(grid: WholeGrid) -> Client:
    return grid.client


def test_a_message_lost_with_its_consumer_costs_no_job(client: Client, home: GridProcesses) -> None:
    for child in home.children.values():
        child.send_signal(
            signal.SIGSTOP
        )  # its BRPOP is open: a message sent now reaches a socket that is not read
    jobs = [client.submit({"root": seq(ECHO, ECHO)}, number, wait_for_seat=True) for number in range(3)]
    delayed = [run_graph.delay({"root": seq(ECHO, ECHO)}, number, wait_for_seat=True) for number in range(3)]
    for name, child in list(home.children.items()):
        child.send_signal(signal.SIGKILL)
        child.wait()
        home.spawn(name)
    assert [client.result(job, timeout=60) for job in jobs] == list(range(3))
    assert [job.get(timeout=60) for job in delayed] == list(range(3))


def test_a_wake_up_that_comes_twice_runs_nothing_twice(client: Client) -> None:
    delayed = [run_graph.delay({"root": seq(SLEEP, ECHO)}, number) for number in range(2)]
    jobs = [client.submit({"root": seq(SLEEP, ECHO)}, number) for number in range(2)]
    seats = [f"seat:{seat.seat}" for seat in client.seats()]
    wake_ups = {queue: make_task_template(app, STAGE_TASK, queue, ()) for queue in ("bench:any", *seats)}
    for _ in range(10):
        for queue, text in wake_ups.items():
            client.redis.lpush(client.keys.queue(queue), text.replace(PLACEHOLDER, secrets.token_hex(8)))
        for job in delayed:
            text = make_task_template(app, GRAPH_TASK, ROUTER, (job.id,))
            client.redis.lpush(client.keys.queue(ROUTER), text.replace(PLACEHOLDER, job.id))
        time.sleep(0.1)
    answers = [client.result(job, timeout=60) for job in jobs] + [job.get(timeout=60) for job in delayed]
    assert [answer["items"] for answer in answers] == [0, 1, 0, 1]
    for job in (*jobs, *(each.id for each in delayed)):
        assert [row.attempt for row in client.rows(job)] == [1, 1]


def test_celery_knows_that_a_slot_is_busy(client: Client) -> None:
    job = client.submit({"root": SLEEP}, 1)
    wait_for(lambda: sum(seat.busy for seat in client.workers()) == 1)
    active = [shown for each in (app.control.inspect().active() or {}).values() for shown in each]
    assert [(shown["name"], shown["acknowledged"]) for shown in active] == [(STAGE_TASK, False)]
    assert client.result(job, timeout=60) == {"items": 1, "ms": 1500}
    wait_for(lambda: not any((app.control.inspect().active() or {"": 1}).values()))
    stats = (app.control.inspect().stats() or {}).values()
    assert sum(each["total"].get(STAGE_TASK, 0) for each in stats) >= 1


def test_a_killed_worker_leaves_no_unacknowledged_message(client: Client, home: GridProcesses) -> None:
    job = client.submit({"root": SLEEP}, 1)
    wait_for(lambda: sum(seat.busy for seat in client.workers()) == 1)
    home.children["bench"].send_signal(signal.SIGKILL)
    home.children["bench"].wait()
    assert not list(client.redis.scan_iter(f"{home.config.prefix}unacked*"))
    home.spawn("bench")
    assert client.result(job, timeout=60) == {"items": 1, "ms": 1500}
    assert [row.attempt for row in client.rows(job)] == [2]


def test_a_message_does_not_grow_with_the_graph(client: Client, home: GridProcesses) -> None:
    for child in home.children.values():
        child.send_signal(signal.SIGSTOP)
    try:
        # the first one may go to an open BRPOP
        delayed = [run_graph.delay({"root": ECHO}, 1) for _ in range(2)]
        delayed.append(run_graph.delay({"root": seq(*[ECHO] * 300)}, "x" * 10_000))
        long, short = client.redis.lrange(client.keys.queue(ROUTER), 0, 1)
    finally:
        for child in home.children.values():
            child.send_signal(signal.SIGCONT)
    assert abs(len(long) - len(short)) < 20
    assert len(short) < 2000
    assert "bench_echo" not in json.dumps(short.decode())
    assert [job.get(timeout=60) for job in delayed] == [1, 1, "x" * 10_000]


def test_an_answer_that_cannot_be_written_is_written_later_and_fails_nothing(
    client: Client, home: GridProcesses
) -> None:
    job = run_graph.delay({"root": SLEEP}, 1)
    wait_for(lambda: sum(seat.busy for seat in client.workers()) == 1)
    name = app.backend.get_key_for_task(job.id).decode()
    client.redis.rpush(
        home.config.prefix + name, "a value that Celery cannot read"
    )  # GET fails: a wrong type
    wait_for(lambda: client.status(job.id) == "done")
    assert client.result(job.id) == {"items": 1, "ms": 1500}
    client.redis.delete(home.config.prefix + name)
    assert run_graph.AsyncResult(job.id).get(timeout=60) == {"items": 1, "ms": 1500}


def test_a_task_longer_than_the_visibility_timeout_runs_once(grid_env: GridEnv, tmp_path: Path) -> None:
    made = make()
    hasty = {"visibility_timeout": 0.5, "unacked_restore_interval": 0.2, "unacked_restore_throttle": 1}
    made.conf.broker_transport_options = {**made.conf.broker_transport_options, **hasty}
    text = make_task_template(made, "witness.run", "llm:a", (str(tmp_path), PLACEHOLDER, True))
    with start_worker(made, pool="threads", concurrency=2, perform_ping_check=False, queues=["llm:a"]):
        grid_env.client.lpush(f"{grid_env.prefix}llm:a", text.replace(PLACEHOLDER, "one"))
        wait_for(lambda: notes(tmp_path) == ["start one"])
        time.sleep(3)  # six times as long as it may stay unacknowledged
        (tmp_path / "go").touch()
        assert made.AsyncResult("one").get(timeout=30) == "one"
    assert notes(tmp_path) == ["start one", "end one"]
    made.close()
