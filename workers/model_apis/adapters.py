"""Adapt a seat's backend to the API format of the client."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from gridq.protocol.models import Json
from workers.model_apis.anthropic.from_chat import ChatToMessages
from workers.model_apis.api_request import OPENAI, SHAPE_ERRORS
from workers.model_apis.backend import Backend
from workers.model_apis.google.client import GOOGLE
from workers.model_apis.google.from_chat import ChatToGoogle
from workers.model_apis.openai.from_messages import MessagesToChat

T = TypeVar("T")


def adapt_backend(api: str, backend: Backend) -> Backend:
    """Return a backend that takes requests in the API format `api` and sends them to `backend`."""
    if backend.api == api:
        return backend
    if backend.api == GOOGLE:
        chat = ChatToGoogle(backend)
        return chat if api == OPENAI else MessagesToChat(chat, accepts_thinking=True)
    return ChatToMessages(backend) if api == OPENAI else MessagesToChat(backend)


def parse_answer(backend: Backend, parse: Callable[..., T], *values: Json) -> T:
    """Return `parse(*values)`, where `values` came from `backend`.

    Raises the backend's format error if they do not have the shape that `parse` expects.
    """
    try:
        return parse(*values)
    except SHAPE_ERRORS as exc:
        raise backend.make_format_error(f"what it sent is not of the API format ({exc})") from None
