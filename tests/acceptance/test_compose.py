"""The services of docker-compose.yml as plain processes: jobs, passwords and health checks."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from gridq.client import Client
from gridq.config.settings import Settings
from gridq.limits import api_keys
from tests.acceptance.test_demo import needs_model
from tests.compose import ROOT, Service, load, programs
from tests.waiting import wait_for
from workers.supervisor.embedded_server import find_free_port, find_server_program

pytestmark = pytest.mark.slow

# Stands in for Valkey's own client where this machine has none: `-p PORT ping`, its password in a variable.
PING = """#!{python}
import os, sys, redis
assert sys.argv[1] == "-p" and sys.argv[3] == "ping"
try:
    client = redis.Redis(port=int(sys.argv[2]), password=os.environ["REDISCLI_AUTH"], retry=None)
    print("PONG" if client.ping() else "")
except redis.RedisError as exc:
    print(exc)
"""


@dataclass
class Containers:
    """The service and the process of each container, by name."""

    services: dict[str, Service]
    children: dict[str, subprocess.Popen[bytes]]
    port: int
    flower: int
    gateway: int
    folder: Path

    def start(self, name: str) -> None:
        self.children[name] = self.services[name].start()
        wait_for(self.services[name].is_healthy, 60, poll=0.2, explain=lambda: self.read_log(name))

    def end(self, name: str, how: signal.Signals = signal.SIGTERM) -> int:
        child = self.children.pop(name)
        child.send_signal(how)
        return child.wait(40)

    def read_log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")


@pytest.fixture(scope="module")
def containers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Containers]:
    """All services but the worker and the gateway, healthy, started in the order of Compose."""
    folder = tmp_path_factory.mktemp("compose")
    port, flower, gateway = find_free_port(), find_free_port(), find_free_port()
    (folder / "secrets").mkdir()
    for name in ("redis_password", "flower_password"):
        (folder / "secrets" / name).write_text(secrets.token_hex(16) + "\n")
    (folder / "data").mkdir()
    conf = (ROOT / "broker_config" / "redis.conf").read_text()
    for there, here in {
        "bind * -::*": "bind 127.0.0.1", "port 6379": f"port {port}", "dir /data": f"dir {folder / 'data'}",
    }.items():  # fmt: skip
        assert there in conf
        conf = conf.replace(there, here)
    (folder / "redis.conf").write_text(conf)
    (folder / "ping").write_text(PING.format(python=sys.executable))
    (folder / "ping").chmod(0o755)
    cli = shutil.which("valkey-cli") or shutil.which("redis-cli") or str(folder / "ping")
    path = programs(folder / "bin", valkey_server=find_server_program(), valkey_cli=cli)
    here = {
        "/run/secrets/": f"{folder}/secrets/", "/etc/gridq/redis.conf": str(folder / "redis.conf"),
        "redis:6379": f"127.0.0.1:{port}", "-p 6379": f"-p {port}", "5555": str(flower),
        "8080": str(gateway), "0.0.0.0": "127.0.0.1",
    }  # fmt: skip
    specs = load()["services"]
    numbered = {
        "redis": "redis",
        "router-1": "router",
        "router-2": "router",
        "flower": "flower",
        "worker": "worker",
        "gateway": "gateway",
    }
    services = {
        name: Service(name, specs[of], {**here, "/var/lib/gridq": str(folder / f"home-{name}")}, path, folder)
        for name, of in numbered.items()
    }
    up = Containers(services, {}, port, flower, gateway, folder)
    try:
        for name in ("redis", "router-1", "router-2", "flower"):
            up.start(name)
        yield up
    finally:
        for name in list(up.children)[::-1]:
            up.end(name)


def client_of(up: Containers) -> Client:
    password = (up.folder / "secrets" / "redis_password").read_text().strip()
    return Client(config=Settings(broker_url=f"redis://:{password}@127.0.0.1:{up.port}/0"))


def test_the_server_is_durable_and_requires_its_password(containers: Containers) -> None:
    with client_of(containers) as client:
        config = client.redis.config_get("*")
        assert (config["appendonly"], config["maxmemory-policy"]) == ("yes", "noeviction")
    command = Path(f"/proc/{containers.children['redis'].pid}/cmdline")
    if command.exists():
        assert (
            containers.folder / "secrets" / "redis_password"
        ).read_text().strip() not in command.read_text()


def test_a_graph_runs_through_the_routers(containers: Containers) -> None:
    graph = {"root": {"op": "Stage", "id": "text_template", "config": {"template": "Hello {{name}}"}}}
    command = ("gridq", "run", "-", "--input", '{"name": "Ada"}')
    done = containers.services["router-1"].run(*command, input=json.dumps(graph))
    assert (done.returncode, done.stdout.strip()) == (0, "Hello Ada"), done.stderr


@needs_model
def test_the_briefing_runs_through_all_services(containers: Containers) -> None:
    containers.start("worker")
    graph = json.loads((ROOT / "examples" / "briefing.json").read_text())
    notes = json.loads((ROOT / "examples" / "briefing-input.json").read_text())
    with client_of(containers) as client:
        job = client.submit(graph, notes)
        assert str(client.result(job, 100)).startswith("Good morning, Ada.")
        assert {row.worker.partition("@")[0] for row in client.rows(job)} >= {"cpu", "router"}
    assert containers.end("worker") == 0
    wait_for(lambda: not containers.services["worker"].is_healthy(), poll=0.2)


def test_flower_requires_the_password_of_its_file(containers: Containers) -> None:
    def status(login: str) -> int:
        request = urllib.request.Request(f"http://127.0.0.1:{containers.flower}/api/workers")
        request.add_header("Authorization", "Basic " + b64encode(login.encode()).decode())
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as exc:
            return exc.code

    password = (containers.folder / "secrets" / "flower_password").read_text().strip()
    assert status(f"gridq:{password}") == 200
    assert status("gridq:wrong") == 401


def test_the_gateway_serves_only_requests_with_a_key(containers: Containers) -> None:
    """As in docs/how-to/operator/deploy.md: once there is a key, every request needs one."""
    router, gateway = containers.services["router-1"], containers.services["gateway"]
    assert gateway.spec["profiles"] == ["gateway"]
    made = router.run("gridq", "keys", "create", "--agent", "ann")
    assert made.returncode == 0, made.stderr
    key = made.stdout.strip()
    (containers.folder / "secrets" / "ann_key").write_text(key)
    containers.start("gateway")
    url = f"http://127.0.0.1:{containers.gateway}"
    with httpx.Client(base_url=url, headers={"authorization": f"Bearer {key}"}, trust_env=False) as http:
        assert httpx.get(f"{url}/v1/models", trust_env=False).status_code == 401
        assert http.get("/v1/models").status_code == 200
        root = {"op": "Stage", "id": "text_template", "config": {"template": "Hello {{name}}"}}
        job = {"graph": {"root": root}, "input": {"name": "Ada"}}
        assert httpx.post(f"{url}/jobs", json=job, trust_env=False).status_code == 401
        given = http.post("/jobs", json=job)
        assert given.status_code == 202, given.text
        view = http.get(f"/jobs/{given.json()['job']}", params={"wait": 30}, timeout=60).json()
        assert (view["state"], view["result"]["output"]) == ("done", "Hello Ada")
    assert containers.end("gateway") == 0
    assert not gateway.is_healthy()
    with client_of(containers) as client:
        assert api_keys.forget(client.redis, client.keys, api_keys.list_keys(client.redis, client.keys)[0].id)


def test_no_service_logs_a_secret(containers: Containers) -> None:
    words = [path.read_text().strip() for path in (containers.folder / "secrets").iterdir()]
    for name in containers.services:
        log = containers.folder / f"{name}.log"
        assert not [word for word in words if log.exists() and word in log.read_text(errors="replace")]


def test_a_health_check_fails_when_its_program_is_down(containers: Containers) -> None:
    for name in ("router-2", "flower"):
        assert containers.services[name].is_healthy()
        containers.end(name, signal.SIGKILL)
        wait_for(lambda name=name: not containers.services[name].is_healthy(), poll=0.2)
    assert containers.services["router-1"].is_healthy(), "one of two is down"


def test_a_router_that_hangs_is_not_healthy(containers: Containers) -> None:
    os.kill(containers.children["router-1"].pid, signal.SIGSTOP)
    try:
        wait_for(lambda: not containers.services["router-1"].is_healthy(), poll=0.2)
    finally:
        os.kill(containers.children["router-1"].pid, signal.SIGCONT)
    wait_for(
        containers.services["router-1"].is_healthy,
        60,
        poll=0.2,
        explain=lambda: containers.read_log("router-1"),
    )


def test_without_its_server_nothing_is_healthy(containers: Containers) -> None:
    containers.end("router-1")
    assert containers.end("redis", signal.SIGKILL) != 0
    assert not containers.services["redis"].is_healthy()
    assert not containers.services["router-1"].is_healthy()
