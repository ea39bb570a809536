"""The router's task leaves no trace of its own: no answer in Celery's backend, no event."""

from __future__ import annotations

from typing import Any

from celery.app.trace import build_tracer

from gridq.app import app
from gridq.messaging.router_request import AdmissionRequest
from gridq.tasks import run_graph
from tests.conftest import GridEnv


def _run(job: str) -> None:
    build_tracer(run_graph.name, run_graph, app=app)(job, (job,), {}, {"id": job, "ignore_result": False})


def test_the_body_writes_no_answer(grid_env: GridEnv) -> None:
    _run("job-1")
    assert app.backend.get_state("job-1") == "PENDING"


def test_a_body_that_fails_writes_no_answer(grid_env: GridEnv, monkeypatch: Any) -> None:
    """The job stands in the inbox still, and the sweep rings for it again."""

    def broken(job: str) -> None:
        raise OSError("the server is away")

    monkeypatch.setattr(run_graph, "admit", broken, raising=False)
    _run("job-2")
    assert app.backend.get_state("job-2") == "PENDING"


def test_the_body_sends_no_events() -> None:
    class Eventer:
        enabled = True

        def __init__(self) -> None:
            self.sent: list[str] = []

        def send(self, type: str, **fields: Any) -> None:
            self.sent.append(type)

    request = AdmissionRequest.__new__(AdmissionRequest)
    request._eventer, request._task, request.id = Eventer(), run_graph, "job-3"
    request.send_event("task-started")
    request.send_event("task-succeeded", result=None, runtime=0.1)
    assert request._eventer.sent == []
    assert run_graph.Request == f"{AdmissionRequest.__module__}:{AdmissionRequest.__name__}"
