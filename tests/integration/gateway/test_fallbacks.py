"""Requests with several models: the first that a seat can serve now answers, and the answer names it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from gridq.config.settings import Settings
from gridq.limits import ledger
from gridq.protocol.models import Limit, SeatTerms
from tests.fakes.openai_server import OpenAIServer
from tests.gateways import Gateway, serving
from tests.local_grid import LocalGrid
from tests.seat_runners import LlmRunner, llm_grid
from workers.supervisor.embedded_server import EmbeddedServer

HELLO: Any = [{"role": "user", "content": "so it goes on"}]
CHAT = "/v1/chat/completions"


@dataclass
class Two:
    """A gateway before a seat that has `claude-opus`, `limited` and `costly`, and one that has `gpt-5`."""

    gateway: Gateway
    grid: LocalGrid
    first: OpenAIServer
    second: OpenAIServer

    def post(self, body: dict[str, Any], **headers: str) -> httpx.Response:
        return self.gateway.http.post(
            CHAT,
            json={"messages": HELLO, **body},
            headers={k.replace("_", "-"): v for k, v in headers.items()},
        )

    def queues(self, reply: httpx.Response) -> list[tuple[str, str, str]]:
        """Return the worker, the queue and the state of each attempt of a reply's job."""
        rows = self.grid.client.rows(reply.headers["x-gridq-job"])
        return [(row.worker, row.queue, row.state) for row in rows]


@pytest.fixture(scope="module")
def two(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    with _two(server, tmp_path_factory.mktemp("home")) as made:
        yield made


@pytest.fixture
def fresh(server: EmbeddedServer, tmp_path: Path) -> Iterator[Two]:
    """Seats that a test may break."""
    with _two(server, tmp_path) as made:
        yield made


@contextmanager
def _two(server: EmbeddedServer, home: Path) -> Iterator[Two]:
    config = Settings(
        broker_url=server.url, prefix=f"fb{secrets.token_hex(4)}:", home=home, retry_backoff=0.0
    )
    with ExitStack() as stack:
        first = stack.enter_context(OpenAIServer(called="claude-opus-4"))
        second = stack.enter_context(OpenAIServer(called="gpt-5-2025"))
        opus = [
            {"name": "claude-opus", "families": ["claude"]},
            {"name": "status-429", "families": ["limited"]},
            {"name": "costly", "price_in": 1.0, "price_out": 1.0},
            {"name": "cut"},
        ]
        runners = {
            "m.opus": LlmRunner(first.url, opus),
            "m.gpt": LlmRunner(
                second.url, [{"name": "gpt-5", "context": 8000}, {"name": "embed", "embeddings": True}]
            ),
        }
        grid = stack.enter_context(llm_grid(config, runners, concurrency=2))
        yield Two(stack.enter_context(serving(config, admission_wait=0.2)), grid, first, second)


def test_the_preferred_model_serves_while_it_can(two: Two) -> None:
    with openai.OpenAI(base_url=f"{two.gateway.url}/v1", api_key="none", max_retries=0) as client:
        answer = client.chat.completions.create(
            model="claude-opus", messages=HELLO, extra_body={"models": ["gpt-5"]}
        )
    assert answer.model == "claude-opus-4"
    assert "models" not in two.first.requests[-1]["body"]  # no field of the endpoint's own API


def test_the_fallback_serves_while_the_preferred_model_is_paused(fresh: Two) -> None:
    fresh.first.retry_after = "60"
    with openai.OpenAI(base_url=f"{fresh.gateway.url}/v1", api_key="none", max_retries=0) as client:
        answers = [
            client.chat.completions.with_raw_response.create(
                model="limited", messages=HELLO, extra_body={"models": ["gpt-5", "any"]}
            )
            for _ in range(2)
        ]
        with client.chat.completions.create(
            model="claude-opus", messages=HELLO, stream=True, extra_body={"models": ["gpt-5"]}
        ) as stream:
            chunks = list(stream)
    assert [answer.parse().model for answer in answers] == ["gpt-5-2025"] * 2
    assert {chunk.model for chunk in chunks} == {"gpt-5-2025"}
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "so it goes on "
    assert len(fresh.first.requests) == 1  # its seat is paused since
    assert [request["body"]["model"] for request in fresh.second.requests] == ["gpt-5"] * 3
    tried = [fresh.queues(httpx.Response(200, headers=dict(answer.headers))) for answer in answers]
    assert tried == [
        [("m.opus", "llm:limited", "failed"), ("m.gpt", "llm:gpt-5", "done")],
        [("m.gpt", "llm:gpt-5", "done")],
    ]
    booked = [
        (entry.seat, entry.queue, entry.what)
        for entry in ledger.read_entries(fresh.grid.scripts.client, fresh.grid.scripts.keys)
        if entry.what in ledger.ATTEMPTS
    ]
    assert booked == [
        ("m.opus", "llm:limited", "seat"),
        *[("m.gpt", "llm:gpt-5", "done")] * 3,
    ]


def test_the_fallback_serves_once_the_budget_is_used_up(fresh: Two) -> None:
    session = fresh.grid.sessions["m.opus"]
    five = Limit(resource="money", window="month", amount=5)  # micro-dollars: less than one answer costs
    session.terms = SeatTerms(limits=(five,))
    session.register()
    with openai.OpenAI(base_url=f"{fresh.gateway.url}/v1", api_key="none", max_retries=0) as client:
        answers = [
            client.chat.completions.create(
                model="costly", messages=HELLO, extra_body={"models": ["gpt-5"]}
            ).model
            for _ in range(2)
        ]
    assert answers == ["claude-opus-4", "gpt-5-2025"]


def test_a_header_can_name_the_fallbacks(fresh: Two) -> None:
    fresh.grid.sessions["m.opus"].drain()
    reply = fresh.post({"model": "claude-opus"}, x_gridq_models="claude, gpt-5")
    assert reply.json()["model"] == "gpt-5-2025"
    with anthropic.Anthropic(base_url=fresh.gateway.url, api_key="none", max_retries=0) as client:
        message = client.messages.create(
            model="claude-opus", max_tokens=9, messages=HELLO, extra_body={"models": ["gpt-5"]}
        )
    assert message.model == "gpt-5-2025"
    assert "models" not in fresh.second.requests[-1]["body"]


def test_no_fallback_after_the_first_token(fresh: Two) -> None:
    with fresh.gateway.http.stream(
        "POST", CHAT, json={"model": "cut", "models": ["gpt-5"], "messages": HELLO, "stream": True}
    ) as reply:
        text = reply.read().decode()
    assert "stage.stream_cut" in text
    assert fresh.second.requests == []


def test_models_without_model_and_repetitions(two: Two) -> None:
    assert two.post({"models": ["gpt-5", "claude-opus"]}).json()["model"] == "gpt-5-2025"
    assert two.post({"model": "GPT-5", "models": ["gpt-5"]}).json()["model"] == "gpt-5-2025"
    assert "models" not in two.second.requests[-1]["body"]


def test_embeddings_have_fallbacks(two: Two) -> None:
    body = {"model": "claude-opus", "models": ["embed"], "input": "x"}
    reply = two.gateway.http.post("/v1/embeddings", json=body)
    assert reply.status_code == 200, reply.text
    assert two.second.requests[-1]["body"]["model"] == "embed"


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"models": "gpt-5"}, "models"),
        ({"models": ["gpt-5", 7]}, "models[1]"),
        ({"models": ["gpt-5", " "]}, "models[1]"),
        ({"models": ["gpt-5", "any", "gpt-5"]}, "models"),
        ({"models": [f"m{number}" for number in range(8)]}, "models"),
        ({"models": []}, None),
    ],
)
def test_invalid_fallbacks_are_refused(two: Two, body: dict[str, Any], path: str | None) -> None:
    reply = two.post({"model": "claude-opus", **body})
    if path is None:
        assert reply.status_code == 200
    else:
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, path), reply.text


def test_fallbacks_in_both_header_and_body_are_refused(two: Two) -> None:
    assert two.post({"model": "any", "models": ["gpt-5"]}, x_gridq_models="gpt-5").status_code == 400
    assert two.post({}).json()["error"]["param"] == "model"
    assert two.post({"models": []}).json()["error"]["param"] == "model"
    assert two.post({"model": "any"}, x_gridq_models="a,,b").status_code == 400


def test_a_refusal_names_every_model(two: Two) -> None:
    reply = two.post({"model": "nobody-has-this", "models": ["nor-this"]})
    assert reply.status_code == 404, reply.text
    message = reply.json()["error"]["message"]
    assert "llm:nobody-has-this or llm:nor-this" in message
    late = two.post({"model": "nobody-has-this", "models": ["gpt-5"]}, x_gridq_deadline="20")
    assert late.json()["model"] == "gpt-5-2025"
