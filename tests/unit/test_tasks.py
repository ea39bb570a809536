"""Celery's own options that meet a job."""

from __future__ import annotations

from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

import pytest
from celery import chain, chord, group
from celery.app.trace import build_tracer
from celery.worker import state as celery_state
from celery.worker.request import Request

import gridq
from gridq.app import app
from gridq.errors import ConfigError
from gridq.messaging.router_request import AdmissionRequest
from gridq.submission.inbox import get_default_inbox
from tests.conftest import GridEnv

ECHO = {"root": {"op": "Const", "value": 1}}


@pytest.fixture
def submitted(grid_env: GridEnv, monkeypatch: pytest.MonkeyPatch) -> GridEnv:
    """A server on which it can be seen what was stored."""
    get_default_inbox.cache_clear()
    return grid_env


@pytest.mark.parametrize(
    "option",
    [
        {"countdown": 3},
        {"eta": datetime.now(UTC)},
        {"expires": 3},
        {"expires": 0},
        {"priority": 9},
        {"priority": 0},
        {"priority": "batch"},
        {"queue": "nope"},
        {"routing_key": "nope"},
        {"exchange": "nope"},
        {"serializer": "pickle"},
        {"time_limit": 5},
        {"soft_time_limit": 5},
        {"delivery_mode": 1},
        {"deadline": 5},
        {"prioritty": 5},
        {"link": gridq.run_graph.si(ECHO)},
        {"link_error": gridq.run_graph.si(ECHO)},
        {"chain": [gridq.run_graph.si(ECHO)]},
    ],
)
def test_celery_options_of_the_message_are_refused_and_nothing_is_stored(
    submitted: GridEnv, option: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError) as caught:
        gridq.run_graph.apply_async((ECHO,), **option)
    assert caught.value.path in option
    assert caught.value.fix
    assert list(submitted.client.scan_iter(f"{submitted.prefix}.*")) == []


def test_celery_options_that_keep_their_meaning_are_honoured(submitted: GridEnv) -> None:
    options = {
        "countdown": 0, "expires": None, "link": [], "retry": True, "retry_policy": {"max_retries": 1},
        "headers": {"x": "y"}, "shadow": "mine", "compression": "gzip",
    }  # fmt: skip
    job = gridq.run_graph.apply_async((ECHO,), **options).id
    assert submitted.client.hget(f"{submitted.prefix}.submitted:{job}", "celery") == b"1"
    ignored = gridq.run_graph.apply_async((ECHO,), ignore_result=True)
    assert submitted.client.hget(f"{submitted.prefix}.submitted:{ignored.id}", "celery") is None
    assert ignored.get(timeout=1) is None


def test_a_job_leaves_no_key_without_a_ttl(submitted: GridEnv, key_hygiene: None) -> None:
    gridq.run_graph.delay(ECHO)
    with pytest.raises(ConfigError):
        gridq.run_graph.apply_async((ECHO,), queue="nope")
    assert not submitted.client.exists("nope", "_kombu.binding.nope", f"{submitted.prefix}nope")


def test_a_chain_or_chord_that_would_go_on_too_early_is_refused(submitted: GridEnv) -> None:
    with pytest.raises(ConfigError):
        chain(gridq.run_graph.si(ECHO), gridq.run_graph.si(ECHO)).apply_async()
    with pytest.raises(ConfigError):
        chord([gridq.run_graph.si(ECHO)], gridq.run_graph.si(ECHO)).apply_async()
    assert list(submitted.client.scan_iter(f"{submitted.prefix}.*")) == []


def test_a_group_is_several_jobs(submitted: GridEnv) -> None:
    group([gridq.run_graph.si(ECHO), gridq.run_graph.si(ECHO, 2)]).apply_async()
    assert submitted.client.zcard(submitted.prefix + ".inbox") == 2


@pytest.mark.parametrize("job", [5, "a:b", "a\n", "*"])
def test_an_invalid_job_id_is_refused(submitted: GridEnv, job: Any) -> None:
    with pytest.raises(ConfigError, match="Invalid job id"):
        gridq.run_graph.apply_async((ECHO,), task_id=job)


def test_a_revoked_message_still_wakes_the_router() -> None:
    """Otherwise Celery would report REVOKED for a job that continues."""
    message = app.amqp.create_task_message("job-7", gridq.run_graph.name, ["job-7"], {})

    class Received:
        headers, properties, body = message.headers, message.properties, message.body
        content_type, content_encoding, payload = "application/json", "utf-8", message.body
        delivery_info = MappingProxyType({"exchange": ""})

    celery_state.revoked.add("job-7")
    try:
        about = {
            "app": app,
            "task": gridq.run_graph,
            "hostname": "here",
            "headers": message.headers,
            "decoded": True,
        }
        assert Request(Received(), **about).id == "job-7"
        assert not AdmissionRequest(Received(), **about).revoked()
    finally:
        celery_state.revoked.discard("job-7")


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("run_graph", lambda: gridq.run_graph(ECHO)),
        ("run_graph", lambda: gridq.run_graph(graph=ECHO, input={"a": 1}, stream=True)),
        ("run_graph", lambda: gridq.run_graph.apply((ECHO,))),
        ("complete", lambda: gridq.complete(prompt="Hello")),
        ("complete", lambda: gridq.complete.apply(kwargs={"prompt": "Hello"})),
        ("chat", lambda: gridq.chat("Hello")),
        ("embed", lambda: gridq.embed(input=["a"])),
    ],
)
def test_a_task_that_is_called_like_a_function_says_what_to_call(name: str, call: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        call()
    error = caught.value
    assert (error.code, error.path) == ("config.invalid", name)
    assert f"{name}.delay" in (error.fix or "")


def test_a_router_runs_the_task_by_its_message() -> None:
    admitted: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gridq.run_graph, "admit", admitted.append)
        build_tracer(gridq.run_graph.name, gridq.run_graph, app=app)("u", ("the-job",), {}, {})
    assert admitted == ["the-job"]
