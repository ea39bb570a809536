"""Adapt a seat's backend to the API format of the client."""

from __future__ import annotations

from workers.model_apis.anthropic.from_chat import ChatToMessages
from workers.model_apis.anthropic.messages_seat import MessagesSeat
from workers.model_apis.api_request import ANTHROPIC, OPENAI, RESPONSES
from workers.model_apis.backend import Backend
from workers.model_apis.google.client import GOOGLE
from workers.model_apis.google.from_chat import ChatToGoogle
from workers.model_apis.identity.chat import ChatIdentity
from workers.model_apis.openai.client import OpenAIClient
from workers.model_apis.openai.from_messages import MessagesToChat
from workers.model_apis.openai.from_responses import ResponsesToChat
from workers.model_apis.openai.legacy_functions import LegacyFunctions
from workers.model_apis.openai.responses_seat import ResponsesSeat


def adapt_backend(api: str, backend: Backend, response_id: str = "", model: str = "") -> Backend:
    """Return a backend that takes requests for `model` in the API format `api` and sends them to `backend`.

    `response_id` is the id of the answer to a request of Responses.
    """
    if api == RESPONSES:
        if isinstance(backend, OpenAIClient) and backend.has_responses(model):
            return ResponsesSeat(backend, response_id)
        chat = _adapt_to_chat(backend, api)
        return ResponsesToChat(chat, backend, response_id, accepts_thinking=backend.api == GOOGLE)
    if api == OPENAI:
        chat = _adapt_to_chat(backend, api)
        return chat if backend.api == OPENAI and backend.is_strict else LegacyFunctions(chat)
    if backend.api == ANTHROPIC:
        return MessagesSeat(backend)
    return MessagesToChat(
        _adapt_to_chat(backend, api),
        backend,
        accepts_thinking=backend.api == GOOGLE,
    )


def _adapt_to_chat(backend: Backend, client_api: str) -> Backend:
    """Return a backend of the OpenAI API format for a client of `client_api`, with ids of the grid's own."""
    adapted = backend
    if backend.api == GOOGLE:
        adapted = ChatToGoogle(backend)
    elif backend.api == ANTHROPIC:
        adapted = ChatToMessages(backend)
    return ChatIdentity(adapted, backend, client_api)
