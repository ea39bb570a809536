"""The types of the official client packages, to validate requests and answers of all their API formats."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic.types
import openai.types
import openai.types.chat
import openai.types.responses
from anthropic.types.message_create_params import MessageCreateParamsNonStreaming
from openai.types.chat.completion_create_params import CompletionCreateParamsNonStreaming
from pydantic import TypeAdapter

CHAT_REQUEST: TypeAdapter[Any] = TypeAdapter(CompletionCreateParamsNonStreaming)
MESSAGES_REQUEST: TypeAdapter[Any] = TypeAdapter(MessageCreateParamsNonStreaming)
MESSAGE: TypeAdapter[Any] = TypeAdapter(anthropic.types.Message)
EVENT: TypeAdapter[Any] = TypeAdapter(anthropic.types.RawMessageStreamEvent)
COMPLETION: TypeAdapter[Any] = TypeAdapter(openai.types.chat.ChatCompletion)
CHUNK: TypeAdapter[Any] = TypeAdapter(openai.types.chat.ChatCompletionChunk)
TEXT_COMPLETION: TypeAdapter[Any] = TypeAdapter(openai.types.Completion)
RESPONSE: TypeAdapter[Any] = TypeAdapter(openai.types.responses.Response)
RESPONSE_EVENT: TypeAdapter[Any] = TypeAdapter(openai.types.responses.ResponseStreamEvent)
EMBEDDINGS: TypeAdapter[Any] = TypeAdapter(openai.types.CreateEmbeddingResponse)


def valid(kind: TypeAdapter[Any], value: Any) -> Any:
    """Return `value` as the package parses it. Raises pydantic's ValidationError."""
    return _read_all(kind.validate_python(value))


def _read_all(value: Any) -> Any:
    """Read iterables, which pydantic checks only as they are read."""
    if isinstance(value, dict):
        return {key: _read_all(each) for key, each in value.items()}
    if isinstance(value, list | tuple | Iterator):
        return [_read_all(each) for each in value]
    return value
