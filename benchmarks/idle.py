"""Measure the memory of an idle llm worker: just started, and after some calls.

There are two seats, each run as `gridq worker` and `gridq up` run it. One uses an API key, an endpoint over
TLS and the price list; the other a vendor's program (the tests' fake). Then the same seats run with Celery's
own command, `celery -A workers worker --seat NAME`, for comparison.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import certifi

from benchmarks import http_upstream
from benchmarks.http_sides import list_process_tree, read_shared_memory_mb
from benchmarks.measure import Figure, Measurement, Ratio
from benchmarks.sides import read_memory_mb, use_environment
from gridq.client import BrokerClient
from tests.fakes.programs import FakePrograms
from workers.supervisor.embedded_server import EmbeddedServer
from workers.supervisor.grid_processes import GridProcesses
from workers.supervisor.programs import Program

MAX_MB = 90.0
MAX_SHARE = 0.9
"""The highest allowed ratio to the memory of the same worker under Celery's own command."""
READY_TIMEOUT_SECONDS = 120.0
MODELS = {"key": "gpt-4o", "program": "echo"}
"""The model that each seat serves, by the seat's name."""


def run(*, calls: int = 100, settle: float = 5.0) -> list[Measurement]:
    """Return each worker's memory, `settle` seconds after its start and after the last of its `calls`."""
    found: list[Figure] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gridq-bench-")))
        certificate = Certificate(folder)
        port, _ = stack.enter_context(http_upstream.run_upstream(certificate.files))
        fakes = FakePrograms(folder / "bin", "claude")
        server = stack.enter_context(EmbeddedServer())
        home = folder / "home"
        home.mkdir(mode=0o700)
        (home / "seats.toml").write_text(_make_seats_file(folder, port, fakes))
        config = stack.enter_context(use_environment(server.url, home, 60.0, profiles="gpu,llm"))
        env = {"SSL_CERT_FILE": str(certificate.trusted)}
        machine = GridProcesses(config, list(MODELS), folder=folder / "logs", env=env)
        stack.callback(machine.stop, 5.0)
        machine.start(READY_TIMEOUT_SECONDS)
        client = BrokerClient(server.url, config=config)
        stack.callback(client.close)
        for how in ("just started", f"after {calls} calls"):
            if how != "just started":
                for model in MODELS.values():
                    _run_chats(client, model, calls)
            time.sleep(settle)
            for name in MODELS:
                pid = machine.children[name].pid
                assert list_process_tree(pid) == [pid], "an idle worker has no children"
                row = f"idle seat by {name}, {how}"
                found.append(Figure(f"{row}, resident memory (RSS)", read_memory_mb(pid), "MB", MAX_MB))
                found.append(
                    Figure(f"{row}, its share of it (PSS)", read_shared_memory_mb(pid), "MB", MAX_MB)
                )
        machine.stop(5.0)
        other = CeleryProcesses(config, list(MODELS), folder=folder / "logs", env=env)
        stack.callback(other.stop, 5.0)
        other.start(READY_TIMEOUT_SECONDS)
        time.sleep(settle)
        theirs = [read_memory_mb(other.children[name].pid) for name in MODELS]
    started = found[: 2 * len(MODELS) : 2]
    beside = [
        Ratio(ours.name, ours.value, memory, "MB", MAX_SHARE, other="celery's own command")
        for ours, memory in zip(started, theirs, strict=True)
    ]
    return [*beside, *found]


class CeleryProcesses(GridProcesses):
    """The same workers, started with Celery's own command."""

    def _program(self, name: str) -> Program:
        program = super()._program(name)
        module, app, *options = program.command[2:]
        assert module == "workers.process.node"
        command = (sys.executable, "-m", "celery", "--quiet", "-A", app, "worker", *options)
        return replace(program, command=command)


def _make_seats_file(folder: Path, port: int, fakes: FakePrograms) -> str:
    key = folder / "key"
    key.write_text("sk-bench\n")
    key.chmod(0o600)
    return (
        f'[[llm]]\nname = "key"\nprovider = "openai"\nurl = "https://127.0.0.1:{port}/v1"\n'
        f'key_file = "{key}"\nmodels = [{{name = "{MODELS["key"]}"}}]\nallow_loopback = true\n'
        f'[[llm]]\nname = "program"\ncli = "claude"\nprogram = "{fakes.folder / "claude"}"\n'
        f'home = "{folder}"\nmodels = [{{name = "{MODELS["program"]}"}}]\n'
    )


def _run_chats(client: BrokerClient, model: str, calls: int) -> None:
    graph = {"root": {"op": "Stage", "id": "llm_chat", "config": {"model": model}}}
    jobs = [client.submit(graph, "So it goes.") for _ in range(calls)]
    for job in jobs:
        assert client.result(job, READY_TIMEOUT_SECONDS)["content"]


class Certificate:
    """A certificate for the loopback address, made with openssl.

    `files` are the certificate and its key, for the server. `trusted` is certifi's bundle with the
    certificate added.
    """

    def __init__(self, folder: Path) -> None:
        certificate, key = self.files = folder / "certificate.pem", folder / "key.pem"
        curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
        names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
        command = ["openssl", "req", "-x509", *curve, *names, "-keyout", str(key), "-out", str(certificate)]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        self.trusted = folder / "trusted.pem"
        self.trusted.write_text(certifi.contents() + certificate.read_text())
