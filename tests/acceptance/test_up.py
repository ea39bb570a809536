"""`gridq up`, `down` and `status` with real processes, which are restarted and leave nothing behind."""

from __future__ import annotations

import json
import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from gridq.client import Client
from gridq.config.settings import Settings
from tests.acceptance.homes import HomeFolder, listens, port_of
from tests.fakes.bench_profile import BENCH
from tests.waiting import wait_for

pytestmark = pytest.mark.slow


@pytest.fixture
def home(tmp_path: Path) -> Iterator[HomeFolder]:
    found = HomeFolder(tmp_path)
    yield found
    found.end()


def test_programs_of_the_home_find_the_grid_and_it_ends_cleanly(home: HomeFolder) -> None:
    up = home.start("up", "--no-flower", "--no-gateway")
    state = home.ready()
    port = port_of(state)
    assert [part["name"] for part in state["parts"]] == ["server", "router0", "local", "bench"]
    assert home.echo("hello") == "hello"
    for private in ("grid.json", "server/access.json", "grid.sock"):
        assert stat.S_IMODE((home.path / private).stat().st_mode) == 0o600
    secret = json.loads((home.path / "server" / "access.json").read_text())["password"]
    assert secret not in home.read_log()
    assert secret not in home("status").stdout + home("status", "--json").stdout
    assert not any(secret in command for command in home.processes())

    second = home("up", "--no-flower", "--no-gateway")
    assert second.returncode == 2
    assert f"as process {up.pid}; its server is redis://127.0.0.1:{port}/0" in second.stderr
    assert up.poll() is None

    up.send_signal(signal.SIGTERM)
    assert up.wait(30) == 0
    assert home.processes() == []
    assert not listens(port)
    assert not (home.path / "grid.json").exists()
    assert "Traceback" not in home.read_log()
    log = home.read_log()
    assert f"redis://127.0.0.1:{port}/0" in log
    assert str(home.path / "logs") in log
    assert "gridq run" in log


def test_killed_parts_are_restarted(home: HomeFolder) -> None:
    home.start("up", "--no-flower", "--no-gateway")
    home.ready()
    for name in ("router0", "bench", "server"):
        pid = home.part(name)["pid"]
        os.kill(pid, signal.SIGKILL)
        assert home.restarted(name, pid) != pid
        assert home.part(name)["restarts"] == 1
        assert f"{name} was killed by signal 9" in home.read_log()
        wait_for(lambda: "bench" in {s["seat"].split(".")[1] for s in _seats(home)})
        assert home.echo(f"after {name}") == f"after {name}"


def _seats(home: HomeFolder) -> list[dict[str, str]]:
    seats: list[dict[str, str]] = home.json("status")["grid"].get("seats", [])
    return seats


DEADLY = """
import os
from gridq import stage

@stage(effects=["Process"], input="Any", output="Any")
def deadly(value):
    os._exit(9)
"""


def test_a_stage_that_kills_its_worker_kills_two_and_no_more(home: HomeFolder) -> None:
    (home.folder / "deadly_stages.py").write_text(DEADLY)
    home.env |= {"GRIDQ_STAGES": "deadly_stages", "PYTHONPATH": str(home.folder)}
    home.start("up", "--no-flower", "--no-gateway")
    home.ready()
    graph = home.folder / "graph.json"
    graph.write_text('{"root": {"op": "Stage", "id": "deadly"}}')
    program = home.start("run", str(graph), "--input", "1")
    (found,) = wait_for(lambda: home.json("quarantine"))
    assert (found["path"], found["deaths"]) == ("root", 2)
    assert found["worker"].startswith("local@")
    dropped = home("quarantine", "drop", found["job"], "root")
    assert dropped.returncode == 0
    assert program.wait(30) == 1
    assert "stage.quarantined" in home.read_log(1)
    wait_for(lambda: home.part("local")["restarts"] == 2)


def test_up_starts_flower_and_a_gateway(home: HomeFolder) -> None:
    up = home.start("up", "--seat", "bench")
    state = home.ready()
    assert [part["name"] for part in state["parts"]] == ["server", "router0", "bench", "gateway", "flower"]
    gateway = state["gateway"]
    assert httpx.get(f"{gateway['url']}/v1/models").status_code == 200
    assert f"curl {gateway['url']}/v1/models" in home.read_log()
    assert f"curl {gateway['url']}/v1/models" in home("status").stdout
    flower = state["flower"]
    assert httpx.get(flower["url"]).status_code == 401
    login = (flower["user"], Path(flower["password_file"]).read_text().strip())
    assert httpx.get(flower["url"], auth=login, follow_redirects=True).status_code == 200
    for name, port in (("flower", flower["port"]), ("gateway", gateway["port"])):
        pid = home.part(name)["pid"]
        os.kill(pid, signal.SIGKILL)
        home.restarted(name, pid)
        wait_for(lambda port=port: listens(port))  # type: ignore[misc]
    up.send_signal(signal.SIGTERM)
    assert up.wait(30) == 0
    assert home.processes() == []  # their ports may be another grid's by now


def test_a_killed_grid_leaves_no_process_and_can_be_restarted(home: HomeFolder) -> None:
    up = home.start("up", "--no-flower")
    port = port_of(home.ready())
    up.kill()
    up.wait()
    stale = home("status")
    assert stale.returncode == 3
    assert "Nothing runs in" in stale.stdout
    wait_for(lambda: not home.processes(), 60)
    assert not listens(port)
    assert home.state("grid")["pid"] == up.pid, "its record is left, but ignored"
    home.start("up", "--no-flower", "--no-gateway")
    home.started.remove(up)
    wait_for(lambda: home.state("grid").get("pid") != up.pid)
    assert port_of(home.ready()) == port
    assert home.echo("again") == "again"


def test_down_stops_the_grid(home: HomeFolder) -> None:
    nothing = home("down")
    assert nothing.returncode == 0
    assert "gridq up does not run" in nothing.stdout
    home.env["GRIDQ_GATEWAY_HOST"] = "0.0.0.0"
    detached = home("up", "--no-flower", "--detach")
    assert detached.returncode == 0, detached.stderr
    assert "Not found  gateway: listening at 0.0.0.0 needs an API key" in detached.stdout
    assert "The grid is up" in detached.stdout
    url, port = home.state("grid")["broker_url"], port_of(home.state("grid"))
    done = home.json("down")
    assert (sorted(done["parts"]), done["killed"]) == (["bench", "local", "router0", "server"], [])
    assert home.processes() == []
    assert not listens(port)
    assert home("status").returncode == 3
    refused = home("jobs", "--grid", url)  # with the URL of its record; without it another grid may answer
    assert refused.returncode == 2
    assert refused.stderr.startswith(
        f"error: broker.unreachable: The grid of this machine is stopped (at {home.path})"
    )


def test_an_accepted_job_continues_after_the_grid_was_down(home: HomeFolder) -> None:
    assert home("up", "--no-flower", "--no-gateway", "--detach", "--seat", "local").returncode == 0
    url = home.state("grid")["broker_url"]
    client = Client(config=Settings(broker_url=url, profiles=(BENCH,), home=home.path))
    graph = {"root": {"op": "Stage", "id": "bench_echo"}}
    job = client.submit(graph, "kept", wait_for_seat=True)
    assert home("down").returncode == 0
    home.start("up", "--no-flower", "--no-gateway")
    assert home.ready()["broker_url"] == url
    assert client.result(job, 30) == "kept"
    client.close()


def test_status_shows_parts_server_seats_and_jobs(home: HomeFolder) -> None:
    home.start("up", "--no-flower", "--no-gateway", "--routers", "2", "--seat", "bench")
    home.ready()
    status = home.json("status")
    [up] = status["running"]
    assert [part["name"] for part in up["parts"]] == ["server", "router0", "router1", "bench"]
    assert {part["state"] for part in up["parts"]} == {"running"}
    assert all(Path(part["log"]).is_file() for part in up["parts"])
    assert status["grid"]["server"]["appendonly"] is True
    assert [seat["queues"] for seat in status["grid"]["seats"]] == [["bench:any"]]
    assert status["grid"]["jobs"] == {"queued": 0, "running": 0}
    text = home("status")
    assert text.returncode == 0
    for word in ("server", "router1", "bench:any", "0 queued, 0 running", "data on disk"):
        assert word in text.stdout


def test_an_unknown_seat_is_one_line_and_starts_nothing(home: HomeFolder) -> None:
    up = home("up", "--no-flower", "--no-gateway", "--seat", "none")
    assert up.returncode == 2
    assert "This machine has no seat 'none'" in up.stderr
    assert "Traceback" not in up.stderr
    assert home.processes() == []


def test_a_second_signal_does_not_wait_for_the_drain(home: HomeFolder) -> None:
    home.configure(f'profiles = ["{BENCH}"]\ndrain = 300\n')
    up = home.start("up", "--no-flower", "--no-gateway")
    home.ready()
    graph = home.folder / "sleep.json"
    graph.write_text('{"root": {"op": "Stage", "id": "bench_sleep"}}')
    home.start("run", str(graph), "--input", '{"ms": 100000}')
    wait_for(lambda: any(seat.get("busy") for seat in _seats(home)))
    up.send_signal(signal.SIGINT)
    wait_for(lambda: "Stopping" in home.read_log())
    assert home.part("bench")["pid"]
    up.send_signal(signal.SIGINT)
    assert up.wait(30) == 0
    assert "killed" not in home.read_log().lower(), "they hand back and end"
    runner = home.started.pop()
    runner.kill()
    runner.wait()
    assert home.processes() == []
