"""Flower with a grid of real processes, through its API and its pages."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flower.api import control
from flower.urls import handlers

from gridq.config.machine_id import get_machine_id
from gridq.config.settings import Settings
from tests.acceptance.grids import WholeGrid
from tests.builders import parallel, seq, stage
from tests.fakes.bench_profile import BENCH
from tests.flower_process import FlowerProcess, read_task
from tests.grid_environment import environment, use_grid
from tests.waiting import wait_for
from workers.supervisor.embedded_server import EmbeddedServer
from workers.supervisor.grid_processes import GridProcesses

ECHO = {"root": stage("bench_echo")}
CANARY = "canary-4711-in-the-prompt"
SEATS = """
[[bench]]
name = "bench"
concurrency = 2

[[bench]]
name = "spare"
concurrency = 1
slugs = ["spare"]
"""
SPARE = {"slug": "spare"}
OPEN = {"/healthcheck", "/static/(.*)", "/login/?", "/logout", ".*"}
"""Routes without a password: `OK`, Flower's own files, and 404."""


@pytest.fixture(scope="module")
def grid(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeGrid]:
    """A router, `bench` with two slots, and `spare` with one."""
    folder: Path = tmp_path_factory.mktemp("grid")
    (folder / "home").mkdir()
    (folder / "home" / "seats.toml").write_text(SEATS)
    config = Settings(
        broker_url=server.url, prefix=f"f{secrets.token_hex(3)}:", home=folder / "home", profiles=(BENCH,)
    )
    env = {"GRIDQ_DRAIN": "1"}
    with (
        use_grid(config) as client,
        GridProcesses(config, ["bench", "spare"], folder=folder / "logs", env=env) as home,
    ):
        yield WholeGrid(config, client, home)


@pytest.fixture(scope="module")
def environ(grid: WholeGrid, server: EmbeddedServer) -> dict[str, str]:
    return environment(grid.config)


@pytest.fixture(scope="module")
def shown(grid: WholeGrid, environ: dict[str, str]) -> Iterator[FlowerProcess]:
    """Flower, once it shows the grid and the grid sends events."""
    with FlowerProcess(environ) as flower:
        wait_for(lambda: all(online(flower).get(name) for name in workers_of(grid, "bench", "spare")))
        jobs: list[str] = []
        wait_for(
            lambda: jobs.append(grid.client.submit(ECHO, 1)) or any(read_task(flower, job) for job in jobs)
        )
        yield flower


def workers_of(grid: WholeGrid, *seats: str) -> list[str]:
    machine = get_machine_id(grid.config.home)
    return [f"{seat}@{machine}" for seat in seats]


def online(flower: FlowerProcess) -> dict[str, bool]:
    return {each["hostname"]: each["status"] for each in flower.get("/workers?json=1")["data"]}


def lengths(flower: FlowerProcess) -> dict[str, int]:
    return {each["name"]: each["messages"] for each in flower.get("/api/queues/length")["active_queues"]}


def path_of(route: Any) -> str:
    """Return a path that matches the route."""
    pattern: str = route[0] if isinstance(route, tuple) else route.regex.pattern
    return pattern.rstrip("$").replace("(.+)", "x").replace("(.*)", "x")


def pattern_of(route: Any) -> str:
    return str(route[0] if isinstance(route, tuple) else route.regex.pattern.rstrip("$"))


def test_nothing_is_shown_without_the_password(shown: FlowerProcess) -> None:
    closed = [route for route in handlers if pattern_of(route) not in OPEN]
    assert len(closed) > 25
    for route in closed:
        for method in ("GET", "POST", "PUT", "DELETE"):
            answer = shown.anonymous.request(method, path_of(route))
            assert answer.status_code in {401, 405}, (method, route, answer.text)
            assert len(answer.text) < 100
        assert 401 in {shown.anonymous.request(m, path_of(route)).status_code for m in ("GET", "POST")}, route
    for login in [("gridq", "wrong"), ("gridq", ""), ("", ""), ("other", shown.password)]:
        assert shown.anonymous.get("/api/workers", auth=login).status_code == 401
    assert shown.anonymous.get("/healthcheck").text == "OK"


def test_nothing_can_be_changed(shown: FlowerProcess, grid: WholeGrid) -> None:
    changes = [
        route
        for route in handlers
        if isinstance(route, tuple)
        and issubclass(route[1], control.ControlHandler)
        and "post" in vars(route[1])
    ]
    assert len(changes) >= 10
    (bench,) = workers_of(grid, "bench")
    for route in changes:
        path = route[0].replace("(.+)", bench if "worker" in route[0] else "gridq.run_graph")
        answer = shown.client.post(path, data={"n": 1, "min": 1, "max": 2, "queue": "q", "workername": bench})
        assert answer.status_code == 403, (route, answer.text)
    for what in ("apply", "async-apply", "send-task"):
        answer = shown.client.post(f"/api/task/{what}/gridq.run_graph", json={"args": ["x"]})
        assert answer.status_code == 403, what
    assert online(shown)[bench]


def test_with_control_a_job_is_cancelled_but_none_submitted_or_read(
    grid: WholeGrid, environ: dict[str, str]
) -> None:
    with FlowerProcess(environ, "--control") as flower:
        job = grid.client.submit({"root": stage("bench_sleep")}, {"ms": 60_000})
        answer = flower.client.post(f"/api/task/revoke/{job}", data={"terminate": "true"})
        assert answer.status_code == 200, answer.text
        wait_for(lambda: grid.client.status(job) == "cancelled")
        for what in ("apply", "async-apply", "send-task"):
            answer = flower.client.post(f"/api/task/{what}/gridq.run_graph", json={"args": ["x"]})
            assert answer.status_code == 403, what
        assert flower.client.get(f"/api/task/result/{job}").status_code == 403


def test_every_worker_is_online_by_its_seats_name(shown: FlowerProcess, grid: WholeGrid) -> None:
    names = workers_of(grid, "bench", "spare")
    assert set(names) <= set(shown.get("/api/workers"))
    assert set(names) <= {name for name, alive in online(shown).items() if alive}
    for name in names:
        assert shown.client.get(f"/worker/{name}").status_code == 200


def test_queue_lengths_are_the_waiting_stages(shown: FlowerProcess, grid: WholeGrid) -> None:
    busy = [grid.client.submit({"root": stage("bench_sleep")}, {"ms": 60_000}) for _ in range(3)]
    wait_for(lambda: grid.client.redis.zcard(grid.client.keys("leases")) == 3)
    wait = [grid.client.submit({"root": stage("bench_echo")}, number) for number in range(5)]
    wait_for(lambda: lengths(shown)["bench:any"] == 5)
    listed = {each["name"]: each for each in shown.get("/api/queues/length")["active_queues"]}
    assert listed["bench:any"]["consumers"] == 3  # `spare` serves bench:any too
    assert {"bench:any", "bench:spare", "gridq:pure", "gridq:router"} <= listed.keys()
    assert not [name for name in listed if name.startswith(("seat:", grid.config.prefix))]
    for job in [*busy, *wait]:
        grid.client.cancel(job)
    wait_for(lambda: lengths(shown)["bench:any"] == 0)


def end_of(shown: FlowerProcess, uuid: str) -> dict[str, Any]:
    """Return a task once Flower shows that it has ended."""
    wait_for(lambda: read_task(shown, uuid).get("state") in {"SUCCESS", "FAILURE", "REVOKED"})
    return read_task(shown, uuid)


def test_each_stage_and_the_job_are_one_task_each(shown: FlowerProcess, grid: WholeGrid) -> None:
    chain = {"root": seq(stage("bench_echo"), stage("bench_tokens"), stage("bench_echo"))}
    job = grid.client.submit(chain, {"n": 3, "text": CANARY}, name="chain")
    grid.client.result(job, 20)
    whole = end_of(shown, job)
    assert (whole["name"], whole["state"]) == ("chain", "SUCCESS")
    (bench, spare) = workers_of(grid, "bench", "spare")
    for number, name in enumerate(("bench_echo", "bench_tokens", "bench_echo")):
        task = end_of(shown, f"{job}.{number}")
        assert (task["name"], task["state"]) == (f"chain/{name}", "SUCCESS")
        assert task["worker"] in {bench, spare}
        assert (task["args"], task["kwargs"]) == ("bench:any", f"root.stages[{number}]")
        assert (task["root_id"], task["parent_id"]) == (job, job)
        assert task["received"] <= task["started"] <= task["succeeded"]
        assert task["wait"] >= 0
        assert task["runtime"] >= 0
    assert "3 out" in read_task(shown, f"{job}.1")["result"]
    mine = [uuid for uuid in shown.get("/api/tasks") if uuid.startswith(job)]
    assert sorted(mine) == [job, *(f"{job}.{number}" for number in range(3))]


def test_all_stages_of_a_wide_job_are_shown(shown: FlowerProcess, grid: WholeGrid) -> None:
    wide = {"root": parallel(**{f"b{number}": stage("bench_echo") for number in range(40)})}
    job = grid.client.submit(wide, 1)
    grid.client.result(job, 30)
    assert end_of(shown, job)["state"] == "SUCCESS"
    mine = [uuid for uuid in shown.get("/api/tasks") if uuid.startswith(f"{job}.")]
    assert len(mine) >= 40
    wait_for(lambda: {read_task(shown, uuid)["state"] for uuid in mine} == {"SUCCESS"})


def test_a_failure_is_shown_for_the_stage_and_the_job(shown: FlowerProcess, grid: WholeGrid) -> None:
    job = grid.client.submit({"root": seq(stage("bench_echo"), stage("bench_fail"))}, {"message": CANARY})
    grid.client.wait(job, 20)
    assert end_of(shown, job)["state"] == "FAILURE"
    assert end_of(shown, f"{job}.0")["state"] == "SUCCESS"
    stage_task = end_of(shown, f"{job}.1")
    assert stage_task["state"] == "FAILURE"
    assert "stage.failed" in stage_task["exception"]


def test_a_cancel_is_shown_for_the_stage_and_the_job(shown: FlowerProcess, grid: WholeGrid) -> None:
    job = grid.client.submit({"root": stage("bench_sleep")}, {"ms": 60_000, "why": CANARY})
    wait_for(lambda: read_task(shown, f"{job}.0").get("state") == "STARTED")
    assert read_task(shown, job)["state"] == "STARTED"
    grid.client.cancel(job)
    assert end_of(shown, job)["state"] == "REVOKED"
    assert end_of(shown, f"{job}.0")["state"] == "REVOKED"


@pytest.mark.slow
def test_a_killed_worker_disappears_and_its_stage_stays_one_task(
    shown: FlowerProcess, grid: WholeGrid
) -> None:
    (spare,) = workers_of(grid, "spare")
    job = grid.client.submit({"root": stage("bench_sleep", **SPARE)}, {"ms": 3000, "why": CANARY})
    task = f"{job}.0"
    wait_for(lambda: read_task(shown, task).get("state") == "STARTED")
    killed = grid.home.children["spare"]
    killed.kill()
    killed.wait()
    wait_for(lambda: read_task(shown, task)["state"] != "STARTED")
    wait_for(lambda: spare not in online(shown), 60)
    wait_for(lambda: spare not in shown.get("/api/workers"))
    assert spare not in shown.get("/api/workers?status=1")
    grid.home.spawn("spare")
    ended = end_of(shown, task)
    assert (ended["state"], ended["worker"]) == ("SUCCESS", spare)
    assert ended["retried"]
    assert end_of(shown, job)["state"] == "SUCCESS"
    assert [uuid for uuid in shown.get("/api/tasks") if uuid.startswith(f"{job}.")] == [task]
    wait_for(lambda: online(shown).get(spare) is True)
    assert spare in shown.get("/api/workers")


def test_prompts_and_passwords_are_shown_nowhere(
    shown: FlowerProcess, grid: WholeGrid, server: EmbeddedServer
) -> None:
    job = grid.client.submit({"root": stage("bench_echo")}, CANARY)
    assert grid.client.result(job, 20) == CANARY
    end_of(shown, job)
    tasks = list(shown.get("/api/tasks"))
    workers = list(shown.get("/api/workers"))
    paths = [
        "/api/tasks", "/api/workers?refresh=1", "/api/queues/length", "/api/task/types", "/metrics", "/tasks",
        "/workers", "/broker", *(f"/task/{uuid}" for uuid in tasks), *(f"/worker/{name}" for name in workers),
        *(f"/api/task/info/{uuid}" for uuid in tasks), *(f"/api/task/result/{uuid}" for uuid in tasks),
    ]  # fmt: skip
    columns = {f"columns[{n}][data]": name for n, name in enumerate(("name", "uuid", "received"))}
    table = shown.client.post(
        "/tasks/datatable",
        data={
            "draw": 1,
            "start": 0,
            "length": 10_000,
            "order[0][column]": 2,
            "order[0][dir]": "desc",
            **columns,
        },
    )
    assert table.json()["recordsTotal"] == len(tasks)
    texts = [table.text, shown.read_log(), *(shown.client.get(path).text for path in paths)]
    assert any(job in text for text in texts)
    for text in texts:
        assert CANARY not in text
        assert server.password not in text
        assert shown.password not in text


def test_the_pages_in_a_browser(shown: FlowerProcess, grid: WholeGrid, tmp_path: Path) -> None:
    job = grid.client.submit({"root": stage("bench_echo")}, CANARY, name="picture")
    grid.client.result(job, 20)
    end_of(shown, f"{job}.0")
    (bench, spare) = workers_of(grid, "bench", "spare")
    tasks = shown.page("/tasks")
    for text in ("picture/bench_echo", f"{job}.0", "SUCCESS", "bench:any", "Capability", "Wait", "Runtime"):
        assert text in tasks
    workers = shown.page("/workers")
    assert workers.count(">Online<") >= 3
    for name in (bench, spare):
        assert f'aria-label="Worker {name}"' in workers
    broker = shown.page("/broker")
    assert "bench:spare" in broker
    assert "gridq:router" in broker
    one = shown.page(f"/task/{job}.0")
    assert f'href="/task/{job}"' in one
    assert "Revoke" not in one
    assert "agent default" in shown.page(f"/task/{job}")
    for page in (tasks, workers, broker, one):
        assert CANARY not in page
    shown.page("/tasks", tmp_path / "tasks.png")
    assert (tmp_path / "tasks.png").stat().st_size > 20_000
