"""The official client packages' own types, as judges of what goes over the two API formats."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic.types
import openai.types
import openai.types.chat
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
EMBEDDINGS: TypeAdapter[Any] = TypeAdapter(openai.types.CreateEmbeddingResponse)


def valid(kind: TypeAdapter[Any], value: Any) -> Any:
    """`value` as the package reads it; pydantic's ValidationError where it is not of the kind."""
    return _whole(kind.validate_python(value))


def _whole(value: Any) -> Any:
    """An Iterable is only checked as it is read: read it."""
    if isinstance(value, dict):
        return {key: _whole(each) for key, each in value.items()}
    if isinstance(value, list | tuple | Iterator):
        return [_whole(each) for each in value]
    return value
