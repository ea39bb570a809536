"""A request with betas of Anthropic's API goes to a seat that takes those that it needs."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anthropic
import pytest

from gridq.config.settings import Settings
from tests.fakes import anthropic_server, openai_server
from tests.fakes.anthropic_server import AnthropicServer
from tests.fakes.openai_server import OpenAIServer
from tests.gateways import serving
from tests.seat_runners import LlmRunner, llm_grid
from workers.supervisor.embedded_server import EmbeddedServer

FILES = "files-api-2025-04-14"
HINT = "interleaved-thinking-2025-05-14"
FILE: Any = {"type": "document", "source": {"type": "file", "file_id": "file_1"}}
ASKED: Any = [{"role": "user", "content": [FILE, {"type": "text", "text": "so it goes on"}]}]


@dataclass(frozen=True)
class Grid:
    client: anthropic.Anthropic
    chat: OpenAIServer
    usual: AnthropicServer
    files: AnthropicServer

    def ask(self, model: str, messages: Any = ASKED, betas: str = f"{HINT},{FILES}") -> Any:
        return self.client.messages.with_raw_response.create(
            model=model, max_tokens=9, messages=messages, extra_headers={"anthropic-beta": betas}
        )


@pytest.fixture(scope="module")
def grid(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Grid]:
    """`echo` is at three seats: a chat, an Anthropic one, and an Anthropic one that allows files."""
    home: Path = tmp_path_factory.mktemp("home")
    config = Settings(broker_url=server.url, prefix=f"g{secrets.token_hex(4)}:", home=home, retry_backoff=0.0)
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setenv("CHAT_KEY", openai_server.KEY)
        patch.setenv("OWN_KEY", anthropic_server.KEY)
        chat = stack.enter_context(OpenAIServer(key=openai_server.KEY))
        usual, files = (stack.enter_context(AnthropicServer()) for _ in range(2))
        own: Any = {"key_env": "OWN_KEY", "api": "anthropic"}
        runners = {
            "m.chat": LlmRunner(chat.url, [{"name": "echo"}, {"name": "chat"}], key_env="CHAT_KEY"),
            "m.usual": LlmRunner(usual.url, [{"name": "echo"}, {"name": "usual"}], **own),
            "m.files": LlmRunner(files.url, [{"name": "echo"}], betas=["*", FILES], **own),
        }
        stack.enter_context(llm_grid(config, runners, concurrency=4))
        gateway = stack.enter_context(serving(config, keep_alive=5, admission_wait=0.5))
        client = stack.enter_context(anthropic.Anthropic(base_url=gateway.url, api_key="none", max_retries=0))
        yield Grid(client, chat, usual, files)


def test_a_beta_that_a_request_needs_finds_the_seat_that_allows_it(grid: Grid) -> None:
    for _ in range(12):
        assert grid.ask("echo").http_response.status_code == 200
    assert (len(grid.chat.requests), len(grid.usual.requests), len(grid.files.requests)) == (0, 0, 12)
    assert grid.files.requests[-1]["headers"]["anthropic-beta"] == f"{HINT},{FILES}"


@pytest.mark.parametrize("model", ["chat", "usual"])
def test_without_such_a_seat_the_beta_is_refused_by_name(grid: Grid, model: str) -> None:
    before = len(grid.chat.requests) + len(grid.usual.requests)
    with pytest.raises(anthropic.BadRequestError) as caught:
        grid.ask(model)
    assert FILES in str(caught.value)
    assert len(grid.chat.requests) + len(grid.usual.requests) == before


@pytest.mark.parametrize(("model", "dropped"), [("chat", [HINT, FILES]), ("usual", [FILES])])
def test_a_beta_that_a_request_does_not_need_goes_anywhere(
    grid: Grid, model: str, dropped: list[str]
) -> None:
    reply = grid.ask(model, [{"role": "user", "content": "hi"}])
    assert reply.parse().stop_reason == "end_turn"
    told = reply.headers.get("x-gridq-dropped-fields", "")
    assert [beta for beta in (HINT, FILES) if beta in told] == dropped
