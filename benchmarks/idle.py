"""What the worker of an llm seat holds while nobody asks it for anything: just started, and once calls went
through it.

Two seats, each served as `gridq worker` and `gridq up` serve it: one by a key, at an endpoint over TLS and
with the price list's prices; one by a vendor's program (the fake of the tests). After them the same seats,
served by Celery's own command, `celery -A workers worker --seat NAME`.
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
from benchmarks.http_sides import family, shared_out_memory
from benchmarks.measure import Figure, Measured, Ratio
from benchmarks.sides import environment, memory_of
from gridq.client import BrokerClient
from tests.fakes.programs import FakePrograms
from workers.supervisor.embedded_server import EmbeddedServer
from workers.supervisor.grid_processes import GridProcesses
from workers.supervisor.programs import Program

MB = 90.0
SHARE = 0.9
"""The most that a worker may take of what the same one takes by Celery's own command."""
READY = 120.0
MODELS = {"key": "gpt-4o", "program": "echo"}
"""The seats by name, each with the model that it alone serves."""


def run(*, calls: int = 100, settle: float = 5.0) -> list[Measured]:
    """Memory of each seat's worker, `settle` seconds after it was live and after the last of its `calls`."""
    found: list[Figure] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gridq-bench-")))
        certificate = Certificate(folder)
        port, _ = stack.enter_context(http_upstream.running(certificate.files))
        fakes = FakePrograms(folder / "bin", "claude")
        server = stack.enter_context(EmbeddedServer())
        home = folder / "home"
        home.mkdir(mode=0o700)
        (home / "seats.toml").write_text(_seats(folder, port, fakes))
        config = stack.enter_context(environment(server.url, home, 60.0, profiles="gpu,llm"))
        env = {"SSL_CERT_FILE": str(certificate.trusted)}
        machine = GridProcesses(config, list(MODELS), folder=folder / "logs", env=env)
        stack.callback(machine.stop, 5.0)
        machine.start(READY)
        client = BrokerClient(server.url, config=config)
        stack.callback(client.close)
        for how in ("just started", f"after {calls} calls"):
            if how != "just started":
                for model in MODELS.values():
                    _call(client, model, calls)
            time.sleep(settle)
            for name in MODELS:
                pid = machine.children[name].pid
                assert family(pid) == [pid], "an idle worker has no children"
                row = f"idle seat by {name}, {how}"
                found.append(Figure(f"{row}, resident memory (RSS)", memory_of(pid), "MB", MB))
                found.append(Figure(f"{row}, its share of it (PSS)", shared_out_memory(pid), "MB", MB))
        machine.stop(5.0)
        other = ByCelery(config, list(MODELS), folder=folder / "logs", env=env)
        stack.callback(other.stop, 5.0)
        other.start(READY)
        time.sleep(settle)
        theirs = [memory_of(other.children[name].pid) for name in MODELS]
    started = found[: 2 * len(MODELS) : 2]
    beside = [
        Ratio(ours.name, ours.value, memory, "MB", SHARE, other="celery's own command")
        for ours, memory in zip(started, theirs, strict=True)
    ]
    return [*beside, *found]


class ByCelery(GridProcesses):
    """The same by Celery's own command."""

    def _program(self, name: str) -> Program:
        program = super()._program(name)
        module, app, *options = program.command[2:]
        assert module == "workers.process.node"
        command = (sys.executable, "-m", "celery", "--quiet", "-A", app, "worker", *options)
        return replace(program, command=command)


def _seats(folder: Path, port: int, fakes: FakePrograms) -> str:
    key = folder / "key"
    key.write_text("sk-bench\n")
    key.chmod(0o600)
    return (
        f'[[llm]]\nname = "key"\nprovider = "openai"\nurl = "https://127.0.0.1:{port}/v1"\n'
        f'key_file = "{key}"\nmodels = [{{name = "{MODELS["key"]}"}}]\nallow_loopback = true\n'
        f'[[llm]]\nname = "program"\ncli = "claude"\nprogram = "{fakes.folder / "claude"}"\n'
        f'home = "{folder}"\nmodels = [{{name = "{MODELS["program"]}"}}]\n'
    )


def _call(client: BrokerClient, model: str, calls: int) -> None:
    graph = {"root": {"op": "Stage", "id": "llm_chat", "config": {"model": model}}}
    jobs = [client.submit(graph, "So it goes.") for _ in range(calls)]
    for job in jobs:
        assert client.result(job, READY)["content"]


class Certificate:
    """A certificate for this machine's loopback address, made by openssl.

    `files` are the server's, certificate and key; `trusted` is the usual bundle with it, for a client.
    """

    def __init__(self, folder: Path) -> None:
        certificate, key = self.files = folder / "certificate.pem", folder / "key.pem"
        curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
        names = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
        command = ["openssl", "req", "-x509", *curve, *names, "-keyout", str(key), "-out", str(certificate)]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        self.trusted = folder / "trusted.pem"
        self.trusted.write_text(certifi.contents() + certificate.read_text())
