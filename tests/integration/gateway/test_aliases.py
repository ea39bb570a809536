"""Names of models that stand for what the grid has, for unmodified clients of both vendors."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import anthropic
import openai
import pytest

from gridq.config.settings import Settings
from gridq.limits.quotas_file import parse
from gridq.limits.quotas_loader import put_in_force
from gridq.submission import admission
from tests.builders import stage
from tests.fakes.openai_server import OpenAIServer
from tests.gateways import Gateway, serving
from tests.local_grid import LocalGrid
from tests.seat_runners import LlmRunner, llm_grid
from tests.waiting import wait_for
from workers.supervisor.embedded_server import EmbeddedServer

FILE = """
[models]
"gpt-4o-mini" = ["llm:gone", "llm:qwen3-8b", "any"]
"gpt-4o" = "llm:gone"
"claude-*-haiku-*" = ["llm:small"]
"claude-*" = "gpt-4o-mini"
"qwen3-30b" = ["llm:qwen3-8b"]
"text-embedding-3-small" = ["llm:vectors"]
"""
HELLO: Any = [{"role": "user", "content": "so it goes on"}]


@dataclass
class Aliased:
    """A gateway before a seat that has `qwen3-8b`, `qwen3-30b`, `tiny` (a `small` one) and `vectors`."""

    gateway: Gateway
    grid: LocalGrid
    api: OpenAIServer

    def find_asked_model(self) -> str:
        """Return the model of the endpoint's last request."""
        return str(self.api.requests[-1]["body"]["model"])


@pytest.fixture(scope="module")
def aliased(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aliased]:
    config = Settings(
        broker_url=server.url, prefix=f"al{secrets.token_hex(4)}:", home=tmp_path_factory.mktemp("home")
    )
    with ExitStack() as stack:
        api = stack.enter_context(OpenAIServer(called="what-served"))
        models: list[Any] = [
            {"name": "Qwen3-30B"},
            {"name": "qwen3-8b"},
            {"name": "tiny", "families": ["small"]},
            {"name": "vectors", "embeddings": True},
        ]
        grid = stack.enter_context(llm_grid(config, {"m.api": LlmRunner(api.url, models)}, concurrency=4))
        put_in_force(grid.scripts, parse(FILE, "quotas.toml"), "a test")
        yield Aliased(stack.enter_context(serving(config, admission_wait=0.2)), grid, api)


@pytest.fixture
def chats(aliased: Aliased) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{aliased.gateway.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def messages(aliased: Aliased) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=aliased.gateway.url, api_key="none", max_retries=0) as client:
        yield client


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("model", "asked"),
    [
        ("gpt-4o-mini", "qwen3-8b"),
        ("GPT-4o-mini", "qwen3-8b"),
        ("claude-3-5-haiku-20241022", "tiny"),  # the first pattern that matches
        ("claude-next", "qwen3-8b"),  # a name that stands for another name
        ("qwen3-30b", "Qwen3-30B"),  # a model that a seat has is itself
    ],
)
def test_a_name_stands_for_the_first_model_that_a_seat_has(
    aliased: Aliased,
    chats: openai.OpenAI,
    messages: anthropic.Anthropic,
    model: str,
    asked: str,
    stream: bool,
) -> None:
    if stream:
        with chats.chat.completions.create(model=model, messages=HELLO, stream=True) as chunks:
            assert {chunk.model for chunk in chunks} == {"what-served"}
        assert aliased.find_asked_model() == asked
        with messages.messages.stream(model=model, max_tokens=9, messages=HELLO) as events:
            assert events.get_final_message().model == "what-served"
    else:
        answer = chats.chat.completions.create(model=model, messages=HELLO)
        assert (answer.model, aliased.find_asked_model()) == ("what-served", asked)
        assert messages.messages.create(model=model, max_tokens=9, messages=HELLO).model == "what-served"
    assert aliased.find_asked_model() == asked


def test_embeddings_have_aliases(aliased: Aliased, chats: openai.OpenAI) -> None:
    assert chats.embeddings.create(model="text-embedding-3-small", input="abc").data
    assert aliased.find_asked_model() == "vectors"


def test_a_model_of_a_list_may_be_an_alias(aliased: Aliased, chats: openai.OpenAI) -> None:
    extra: dict[str, Any] = {"models": ["gpt-4o-mini"]}
    chats.chat.completions.create(model="nobody", messages=HELLO, extra_body=extra)
    assert aliased.find_asked_model() == "qwen3-8b"


def test_a_stage_of_a_graph_may_name_an_alias(aliased: Aliased) -> None:
    graph = {"root": stage("llm_chat", model="gpt-4o-mini", messages=HELLO)}
    assert aliased.grid.client.run(graph, timeout=20)["content"] == "so it goes on "
    assert aliased.find_asked_model() == "qwen3-8b"
    job = aliased.grid.client.submit(graph)
    aliased.grid.client.result(job, timeout=20)
    assert [row.queue for row in aliased.grid.client.rows(job)] == ["llm:qwen3-8b"]


def test_a_name_whose_models_no_seat_has_is_refused(aliased: Aliased, chats: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as refused:
        chats.chat.completions.create(model="gpt-4o", messages=HELLO)
    assert isinstance(refused.value.body, dict)
    assert refused.value.body["queues"] == ["llm:gpt-4o", "llm:gone"]


def test_the_models_that_are_listed_say_what_they_stand_for(
    aliased: Aliased, chats: openai.OpenAI, messages: anthropic.Anthropic
) -> None:
    listed = {model.id: model for model in chats.models.list()}
    mini: Any = listed["gpt-4o-mini"]
    assert mini.stands_for == ["gone", "qwen3-8b", "any"]
    assert "gpt-4o" not in listed, "nobody serves what it stands for"
    assert "stands_for" not in listed["Qwen3-30B"].model_dump()
    assert not [name for name in listed if "*" in name]
    assert {model.id for model in messages.models.list()} == listed.keys()
    assert messages.models.retrieve("claude-3-5-haiku-latest").id == "claude-3-5-haiku-latest"
    found: Any = chats.models.retrieve("claude-3-5-haiku-latest")
    assert found.stands_for == ["small"]
    with pytest.raises(openai.NotFoundError):
        chats.models.retrieve("gpt-4o")


def test_a_changed_alias_applies_soon(
    aliased: Aliased, chats: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "ALIASES_TTL_SECONDS", 0.1)
    changed = FILE.replace('["llm:gone", "llm:qwen3-8b", "any"]', '["llm:tiny"]')

    def is_asked(model: str) -> bool:
        chats.chat.completions.create(model="gpt-4o-mini", messages=HELLO)
        return aliased.find_asked_model() == model

    assert is_asked("qwen3-8b")
    put_in_force(aliased.grid.scripts, parse(changed, "quotas.toml"), "a test")
    try:
        wait_for(lambda: is_asked("tiny"))
    finally:
        put_in_force(aliased.grid.scripts, parse(FILE, "quotas.toml"), "a test")
    wait_for(lambda: is_asked("qwen3-8b"))
