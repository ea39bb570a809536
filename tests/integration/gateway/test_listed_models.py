"""A seat that names no models serves those of its endpoint's list, each for what it is."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import openai
import pytest

from gridq.config.settings import Settings
from tests.fakes.openai_server import OpenAIServer
from tests.gateways import serving
from tests.seat_runners import LlmRunner, llm_grid
from workers.supervisor.embedded_server import EmbeddedServer

LISTED = (
    {"id": "dall-e-3"},
    {"id": "text-embedding-3-small"},
    {"id": "acme-vectors", "type": "embedding"},
    {"id": "gpt-5"},
    {"id": "gpt-5-nano"},
    {"id": "acme-chat"},
)


@dataclass
class Listed:
    """A client of a grid whose only seat lists its models."""

    client: openai.OpenAI
    api: OpenAIServer

    def find_asked_model(self) -> str:
        """Return the model of the endpoint's last request."""
        return str(self.api.requests[-1]["body"]["model"])


@pytest.fixture(scope="module")
def listed(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Listed]:
    config = Settings(
        broker_url=server.url, prefix=f"li{secrets.token_hex(4)}:", home=tmp_path_factory.mktemp("home")
    )
    with ExitStack() as stack:
        api = stack.enter_context(OpenAIServer())
        api.listed = list(LISTED)
        runner = LlmRunner(api.url, None, provider="openai", key_file=_write_key(tmp_path_factory))
        stack.enter_context(llm_grid(config, {"m.api": runner}, concurrency=4))
        gateway = stack.enter_context(serving(config, admission_wait=0.2))
        client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0)
        yield Listed(stack.enter_context(client), api)


def _write_key(factory: pytest.TempPathFactory) -> str:
    path = factory.mktemp("keys") / "key"
    path.write_text("sk-listed")
    return str(path)


@pytest.mark.parametrize("model", ["text-embedding-3-small", "acme-vectors"])
def test_a_listed_model_makes_embeddings(listed: Listed, model: str) -> None:
    found = listed.client.embeddings.create(model=model, input="abc", encoding_format="float")
    assert found.data[0].embedding == [3.0, 1.0]
    assert listed.find_asked_model() == model


def test_any_is_the_cheapest_listed_model_that_writes_text(listed: Listed) -> None:
    answer = listed.client.chat.completions.create(
        model="any", messages=[{"role": "user", "content": "so it goes"}]
    )
    assert answer.choices[0].message.content == "so it goes "
    assert listed.find_asked_model() == "gpt-5-nano"


def test_any_with_embeddings_finds_a_seat_that_has_nothing_else(
    server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    config = Settings(
        broker_url=server.url, prefix=f"li{secrets.token_hex(4)}:", home=tmp_path_factory.mktemp("home")
    )
    with ExitStack() as stack:
        chat, vectors = (stack.enter_context(OpenAIServer()) for _ in range(2))
        for works in (True, False):
            runners = {"m.chat": LlmRunner(chat.url, [{"name": "gpt-5"}])}
            if works:
                runners["m.vectors"] = LlmRunner(vectors.url, [{"name": "text-embedding-3-small"}])
            with (
                llm_grid(config, runners, concurrency=2),
                serving(config, admission_wait=0.2) as gateway,
                openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client,
            ):
                assert "any/embeddings" not in [model.id for model in client.models.list()]
                if works:
                    client.embeddings.create(model="any", input="abc")
                    assert not chat.requests
                else:
                    with pytest.raises(openai.BadRequestError, match="embeddings = true"):
                        client.embeddings.create(model="any", input="abc")
                client.chat.completions.create(model="any", messages=[{"role": "user", "content": "so"}])
            chat.requests.clear()
        assert len(vectors.requests) == 1


def test_any_with_embeddings_is_a_model_that_has_them(listed: Listed) -> None:
    listed.client.embeddings.create(model="any", input="abc")
    assert listed.find_asked_model() in ("text-embedding-3-small", "acme-vectors")
