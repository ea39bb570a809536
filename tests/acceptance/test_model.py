"""The one-call tasks, on a real model: SmolLM2 on this machine's CPU."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import pytest

import gridq
from gridq import errors
from gridq.config.settings import Settings
from tests.acceptance.grids import WholeGrid
from tests.grid_environment import use_grid
from tests.waiting import wait_for
from workers.supervisor.embedded_server import EmbeddedServer
from workers.supervisor.grid_processes import GridProcesses

MODEL = "smollm2-135m-instruct"


@pytest.fixture(scope="module")
def model_grid(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WholeGrid]:
    """A router and the seat `cpu`."""
    folder = tmp_path_factory.mktemp("model")
    config = Settings(
        broker_url=server.url, prefix=f"m{secrets.token_hex(3)}:", home=folder / "home", profiles=("gpu",)
    )
    with use_grid(config) as client, GridProcesses(config, ["cpu"], folder=folder / "logs") as home:
        yield WholeGrid(config, client, home)


pytestmark = pytest.mark.usefixtures("model_grid")


def test_complete() -> None:
    text = gridq.complete.delay(prompt="The capital of France is", model=MODEL, max_tokens=8).get(timeout=60)
    assert 0 < len(text.strip()) < 80


def test_a_family_and_any_select_the_model() -> None:
    for model in ("any", "smollm2"):
        assert gridq.complete.delay(prompt="One, two,", model=model, max_tokens=4).get(timeout=60).strip()
    assert gridq.complete.delay(prompt="One, two,", max_tokens=4).get(timeout=60).strip()


def test_chat(model_grid: WholeGrid) -> None:
    messages = [{"role": "user", "content": "Say hello."}]
    job = gridq.chat.delay(messages=messages, model=MODEL, max_tokens=16)
    answer = job.get(timeout=60)
    assert answer["role"] == "assistant"
    assert answer["content"].strip()
    (row,) = model_grid.client.rows(job.id)
    assert row.queue == f"llm:{MODEL}"
    assert row.tokens_in > 0
    assert 0 < row.tokens_out <= 16


def test_an_unknown_model_is_refused_naming_the_closest() -> None:
    with pytest.raises(errors.NoLiveSeat, match=MODEL):
        gridq.complete.delay(prompt="hi", model="smollm3-135m-instruct").get(timeout=20)


def completion(max_tokens: int) -> dict[str, Any]:
    """Return a graph that completes a prompt greedily, so that the length of the answer is fixed."""
    config = {"model": MODEL, "max_tokens": max_tokens, "temperature": 0}
    return {"root": {"op": "Stage", "id": "llm_complete", "config": config}}


def test_tokens_come_one_by_one(model_grid: WholeGrid) -> None:
    job = model_grid.client.submit(completion(24), {"prompt": "Once upon a time"}, stream=True)
    pieces = [piece.value for piece in model_grid.client.stream(job, timeout=60)]
    assert len(pieces) > 5
    assert "".join(pieces) == model_grid.client.result(job)


def test_cancel_frees_the_slot_while_it_generates(model_grid: WholeGrid) -> None:
    client = model_grid.client
    job = client.submit(completion(1500), {"prompt": "Count to a million: 1, 2, 3,"}, stream=True)
    next(client.stream(job, timeout=60))
    assert client.cancel(job)
    busy = next(ad.seat for ad in client.workers() if ad.kind == "gpu")
    wait_for(lambda: not client.redis.exists(client.keys("slots", busy)), 5)
    assert gridq.complete.delay(prompt="One, two,", model=MODEL, max_tokens=4).get(timeout=60)
