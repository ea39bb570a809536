"""Adapt a seat's backend to the API format of the client."""

from __future__ import annotations

from workers.model_apis.anthropic.from_chat import ChatToMessages
from workers.model_apis.api_request import OPENAI, RESPONSES
from workers.model_apis.backend import Backend
from workers.model_apis.google.client import GOOGLE
from workers.model_apis.google.from_chat import ChatToGoogle
from workers.model_apis.openai.client import OpenAIClient
from workers.model_apis.openai.from_messages import MessagesToChat
from workers.model_apis.openai.from_responses import ResponsesToChat
from workers.model_apis.openai.responses_seat import ResponsesSeat


def adapt_backend(api: str, backend: Backend, response_id: str = "") -> Backend:
    """Return a backend that takes requests in the API format `api` and sends them to `backend`.

    `response_id` is the id of the answer to a request of Responses.
    """
    if backend.api == api:
        return backend
    if api == RESPONSES:
        if isinstance(backend, OpenAIClient) and backend.serves_responses:
            return ResponsesSeat(backend, response_id)
        chat = adapt_backend(OPENAI, backend)
        return ResponsesToChat(chat, response_id, accepts_thinking=backend.api == GOOGLE)
    if backend.api == GOOGLE:
        google = ChatToGoogle(backend)
        return google if api == OPENAI else MessagesToChat(google, accepts_thinking=True)
    return ChatToMessages(backend) if api == OPENAI else MessagesToChat(backend)
