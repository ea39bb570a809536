"""A vendor's refusal reaches the vendor's own client as it would without the grid, whole and streamed."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from gridq.config.settings import Settings
from gridq.execution.session import Session
from tests.fakes.anthropic_server import KEY, AnthropicServer
from tests.fakes.openai_server import OpenAIServer
from tests.gateways import Gateway, serving
from tests.seat_runners import LlmRunner, llm_grid
from workers.supervisor.embedded_server import EmbeddedServer

HELLO: Any = [{"role": "user", "content": "so it goes on"}]
TOO_LONG = "status-400-context_length_exceeded-messages"
LIMITED = "status-429-rate_limit_exceeded"
BUSY = "status-503-overloaded"
SESSIONS: list[Session] = []


@pytest.fixture(scope="module")
def gateway(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    home: Path = tmp_path_factory.mktemp("home")
    (home / "key").write_text(KEY)
    config = Settings(
        broker_url=server.url,
        prefix=f"ve{secrets.token_hex(4)}:",
        home=home,
        retry_backoff=0.0,
        max_attempts=1,
    )
    with ExitStack() as stack:
        chat, messages = stack.enter_context(OpenAIServer()), stack.enter_context(AnthropicServer())
        # a seat of its own for each model: the circuit breaker pauses a seat that fails
        runners = {
            f"m.chat-{at}": LlmRunner(chat.url, [{"name": name}])
            for at, name in enumerate((TOO_LONG, LIMITED, BUSY))
        }
        for at, name in enumerate(("status-529", "status-413", "unknown", "error-event", "error-late")):
            table: dict[str, Any] = {"api": "anthropic", "key_file": str(home / "key")}
            runners[f"m.messages-{at}"] = LlmRunner(messages.url, [{"name": name}], **table)
        grid = stack.enter_context(llm_grid(config, runners, concurrency=4))
        SESSIONS[:] = grid.sessions.values()
        yield stack.enter_context(serving(config, admission_wait=10))


@pytest.fixture(autouse=True)
def every_seat_works(gateway: Gateway) -> None:
    """End the cooldowns of the test before."""
    for session in SESSIONS:
        session.end_cooldown()


@pytest.fixture
def chats(gateway: Gateway) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def messages(gateway: Gateway) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=gateway.url, api_key="none", max_retries=0) as client:
        yield client


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("model", "expected", "code", "kind", "param", "own"),
    [
        (TOO_LONG, openai.BadRequestError, "context_length_exceeded", "invalid_request_error", "messages",
         "stage.failed"),
        (LIMITED, openai.RateLimitError, "rate_limit_exceeded", "requests", None,
         "stage.attempts_exhausted"),
        (BUSY, openai.InternalServerError, "overloaded", "server_error", None, "stage.attempts_exhausted"),
    ],
)  # fmt: skip
def test_openais_client_gets_its_vendors_error(
    chats: openai.OpenAI,
    stream: bool,
    model: str,
    expected: type[openai.APIStatusError],
    code: str,
    kind: str,
    param: str | None,
    own: str,
) -> None:
    with pytest.raises(expected) as caught:
        chats.chat.completions.create(model=model, messages=HELLO, stream=stream)
    error = caught.value
    assert (error.code, error.type, error.param) == (code, kind, param)
    assert error.response.headers["x-gridq-code"] == own
    assert isinstance(error.body, dict)
    assert error.body["gridq_code"] == own


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("model", "expected", "status", "kind"),
    [
        ("status-529", anthropic.InternalServerError, 529, "overloaded_error"),
        ("error-event", anthropic.InternalServerError, 529, "overloaded_error"),
        ("status-413", anthropic.RequestTooLargeError, 413, "request_too_large"),
        ("unknown", anthropic.NotFoundError, 404, "not_found_error"),
        (TOO_LONG, anthropic.BadRequestError, 400, "invalid_request_error"),
        (LIMITED, anthropic.RateLimitError, 429, "rate_limit_error"),
    ],
)
def test_anthropics_client_gets_its_vendors_error(
    messages: anthropic.Anthropic,
    stream: bool,
    model: str,
    expected: type[anthropic.APIStatusError],
    status: int,
    kind: str,
) -> None:
    if model == "error-event" and not stream:
        return
    with pytest.raises(expected) as caught:
        messages.messages.create(model=model, max_tokens=9, messages=HELLO, stream=stream)  # type: ignore[call-overload]
    assert caught.value.status_code == status
    body: Any = caught.value.body
    assert body["error"]["type"] == kind
    assert body["error"]["gridq_code"].startswith("stage.")


def test_an_overload_after_the_first_token_is_one_to_both_clients(
    chats: openai.OpenAI, messages: anthropic.Anthropic
) -> None:
    with pytest.raises(anthropic.APIStatusError) as broken:
        for _ in messages.messages.create(model="error-late", max_tokens=9, messages=HELLO, stream=True):
            pass
    body: Any = broken.value.body
    assert (body["error"]["type"], body["error"]["gridq_code"]) == ("overloaded_error", "stage.stream_cut")
    with pytest.raises(openai.APIError) as cut:
        for _ in chats.chat.completions.create(model="error-late", messages=HELLO, stream=True):
            pass
    assert cut.value.type == "overloaded_error"


def test_openais_client_gets_503_for_an_overload_at_a_seat_of_anthropics_format(
    chats: openai.OpenAI,
) -> None:
    with pytest.raises(openai.InternalServerError) as caught:
        chats.chat.completions.create(model="status-529", messages=HELLO)
    assert (caught.value.status_code, caught.value.type) == (503, "overloaded_error")
