"""Adapt a seat's backend to the API format of the client."""

from __future__ import annotations

from workers.model_apis.anthropic.from_chat import ChatToMessages
from workers.model_apis.api_request import OPENAI
from workers.model_apis.backend import Backend
from workers.model_apis.google.client import GOOGLE
from workers.model_apis.google.from_chat import ChatToGoogle
from workers.model_apis.openai.from_messages import MessagesToChat


def adapt_backend(api: str, backend: Backend) -> Backend:
    """Return a backend that takes requests in the API format `api` and sends them to `backend`."""
    if backend.api == api:
        return backend
    if backend.api == GOOGLE:
        chat = ChatToGoogle(backend)
        return chat if api == OPENAI else MessagesToChat(chat, accepts_thinking=True)
    return ChatToMessages(backend) if api == OPENAI else MessagesToChat(backend)
