"""Fingerprints of submissions, and idempotency keys in all ways to submit."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from celery import group

from gridq.client import Client
from gridq.errors import AuthError, ConfigError, IdempotencyConflict, InvalidField, JobCancelled, NoLiveSeat
from gridq.jobs.idempotency import Fingerprint, make_fingerprint
from gridq.jobs.record import JobOptions
from gridq.limits import api_keys
from gridq.protocol.models import Json
from gridq.store import values
from gridq.submission import inbox
from gridq.submission.admission import Admission
from gridq.submission.inbox import Inbox, store_large_input
from gridq.tasks import run_graph
from tests.conftest import GridEnv
from tests.fakes.bench_profile import BenchProfile

ECHO: dict[str, Any] = {"root": {"op": "Stage", "id": "bench_echo"}}
SAME = '{ "root": {"id":"bench_echo", "op":"Stage"} }'


def body(graph: bytes = b"{}", value: bytes = b"1", is_new_id: bool = False, **options: Json) -> Fingerprint:
    return make_fingerprint(graph, value, JobOptions(**options), is_new_id=is_new_id)


def test_only_a_given_id_or_key_has_a_fingerprint() -> None:
    assert body(is_new_id=True) == Fingerprint()
    assert body().digest
    assert not body().key
    assert body(is_new_id=True, idempotency_key="k").digest == body().digest


def test_a_fingerprint_does_not_depend_on_json_formatting() -> None:
    assert body(b'{"a":1,"b":[2.0]}') == body(b'{ "b": [2], "a": 1 }')
    assert body(value=b'"\\u00fc"') == body(value='"ü"'.encode())


@pytest.mark.parametrize(
    "other",
    [
        {"graph": b"[]"}, {"value": b"2"}, {"value": b'"1"'}, {"graph": b"{"}, {"priority": "batch"},
        {"deadline": 5}, {"queue_timeout": 5}, {"stream": True}, {"session": "s"}, {"agent": "bob"},
    ],
)  # fmt: skip
def test_different_bodies_have_different_digests(other: dict[str, Any]) -> None:
    assert body(**other).digest != body().digest


def test_name_wait_and_stream_end_do_not_change_the_fingerprint() -> None:
    assert body(name="n", wait_for_seat=True, stream="end") == body()


def test_a_key_is_stored_hashed_under_its_agent() -> None:
    key = body(idempotency_key="a secret", agent="ann").key
    assert key.startswith("ann:")
    assert "secret" not in key
    assert key != body(idempotency_key="a secret", agent="bob").key


@pytest.mark.parametrize("graph", [b"{", b"NaN", b"[" * 100_000, b"\xff"])
def test_invalid_json_has_a_digest_too(graph: bytes) -> None:
    assert body(graph).digest != body().digest
    assert body(graph) == body(graph)


@pytest.mark.parametrize("key", ["", "x" * 256, "a\nb", 7])
def test_an_invalid_idempotency_key_is_refused(grid_env: GridEnv, key: Json) -> None:
    with pytest.raises(ConfigError, match="idempotency_key"):
        Client(config=grid_env.settings).submit(ECHO, 1, idempotency_key=key)


@pytest.fixture
def client(grid_env: GridEnv) -> Iterator[Client]:
    inbox.get_default_inbox.cache_clear()
    with Client(config=grid_env.settings) as made:
        made._admission = Admission(made.scripts, made.config, {"bench": BenchProfile()})
        yield made
    inbox.get_default_inbox.cache_clear()


def test_the_same_key_returns_the_same_job_from_every_entry(client: Client) -> None:
    job = client.submit(ECHO, {"a": 1}, idempotency_key="k", wait_for_seat=True)
    assert client.submit(SAME, {"a": 1}, idempotency_key="k") == job  # though no seat is there
    again = run_graph.apply_async((SAME, {"a": 1}), {"idempotency_key": "k"})
    assert again.id == job
    assert run_graph.delay(ECHO, {"a": 1}, idempotency_key="k").id == job
    assert not client.redis.llen(client.keys.queue("gridq:router"))  # nobody is rung for what runs
    assert [one.job for one in client.jobs()] == [job]
    with pytest.raises(NoLiveSeat):
        client.submit(ECHO, {"a": 1}, idempotency_key="k2")


def test_the_same_key_with_another_body_is_a_conflict_naming_the_job(client: Client) -> None:
    job = run_graph.delay(ECHO, 1, idempotency_key="k").id
    for send in (run_graph.delay, client.submit):
        with pytest.raises(IdempotencyConflict) as caught:
            send(ECHO, 2, idempotency_key="k")
        assert caught.value.details["job"] == job
        assert caught.value.path == "idempotency_key"
        assert caught.value.code == "job.idempotency_conflict"


def test_the_same_id_with_another_body_is_a_conflict_in_both_entries(client: Client) -> None:
    run_graph.apply_async((ECHO, 1), task_id="mine")
    with pytest.raises(IdempotencyConflict) as caught:
        client.submit(ECHO, 2, job="mine", wait_for_seat=True)
    assert caught.value.path == "job"
    assert client.submit(SAME, 1, job="mine", wait_for_seat=True) == "mine"
    client.submit(ECHO, 1, job="other", wait_for_seat=True)
    with pytest.raises(IdempotencyConflict):
        run_graph.apply_async(({"root": {"op": "Const", "value": 1}}, 1), task_id="other")
    assert run_graph.apply_async((ECHO, 1), task_id="other").id == "other"


def test_the_input_of_an_interrupted_submission_is_not_reused(client: Client) -> None:
    """A submitter died between its long input and its job: who takes the id then brings an input of their
    own, and what a repeated submission wrote is dropped.
    """
    store_large_input(client.scripts, "mine", b'"' + b"a" * 100_000 + b'"', JobOptions())
    run_graph.apply_async((ECHO, "b" * 100_000), task_id="mine")
    link: Any = client.redis.hget(client.keys("submitted", "mine"), "input")
    assert values.read(client.redis, client.keys, link) == b'"' + b"b" * 100_000 + b'"'
    for body in ("b", "c"):
        with suppress(IdempotencyConflict):
            run_graph.apply_async((ECHO, body * 100_000), task_id="mine")
    left = {key.decode() for key in client.redis.scan_iter(client.keys("value", "*"))}
    assert len(left) == 2
    assert client.keys("value", link[1:].decode()) in left


def test_the_result_of_a_job_found_by_its_key_comes_through_celery(client: Client) -> None:
    job = client.submit(ECHO, 1, idempotency_key="k", wait_for_seat=True)
    result = run_graph.delay(ECHO, 1, idempotency_key="k")
    client.cancel(job)
    assert client.redis.zscore(client.keys("answers"), job) is not None
    from gridq.app import app
    from gridq.messaging import answers

    answers.publish_answer(app, client.scripts, job)
    with pytest.raises(JobCancelled):
        result.get(timeout=5)


def test_a_refused_submission_leaves_the_key_free(client: Client) -> None:
    with pytest.raises(InvalidField):
        client.submit({"root": {"op": "Stage", "id": "bench_echo", "config": 7}}, 1, idempotency_key="k")
    with pytest.raises(NoLiveSeat):
        client.submit(ECHO, 1, idempotency_key="k")
    assert client.submit(ECHO, 2, idempotency_key="k", wait_for_seat=True)


def test_a_caller_without_an_api_key_learns_nothing_of_the_job(client: Client) -> None:
    """If the grid requires keys, an agent's name alone proves nothing."""
    _, key = api_keys.create(client.redis, client.keys, "ann")
    job = client.submit(ECHO, 1, key=key, idempotency_key="k", wait_for_seat=True)
    assert client.submit(ECHO, 1, key=key, idempotency_key="k") == job
    for send in (client.submit, Inbox(client.scripts, client.config).enqueue):
        args = ("j2", ECHO, 1) if send != client.submit else (ECHO, 1)
        with pytest.raises(AuthError):
            send(*args, agent="ann", idempotency_key="k", wait_for_seat=True)


def test_a_taken_key_in_a_celery_group_is_an_error(client: Client) -> None:
    job = run_graph.delay(ECHO, 1, idempotency_key="k").id
    with pytest.raises(ConfigError, match=job):
        group([run_graph.s(ECHO, 1, idempotency_key="k")]).apply_async()


def test_concurrent_submissions_with_one_key_are_one_job(client: Client) -> None:
    begin = threading.Barrier(8)

    def send(number: int) -> str:
        begin.wait(10)
        if number % 2:
            return client.submit(ECHO, 1, idempotency_key="k", wait_for_seat=True)
        return Inbox(client.scripts, client.config).enqueue(
            f"j{number}", ECHO, 1, idempotency_key="k", wait_for_seat=True
        )

    with ThreadPoolExecutor(8) as pool:
        (job,) = set(pool.map(send, range(8)))
    assert [one.job for one in client.jobs()] == [job]
