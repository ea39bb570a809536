"""What models are for: by their endpoint's list, by their name, and by their table."""

from __future__ import annotations

from typing import Any

import pytest

from workers.model_apis.model_catalogue import Model
from workers.model_apis.model_kinds import ModelKind, find_kind, guess_kind
from workers.profiles.llm.capability import DeclaredModel, RemoteModel


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("gpt-5-mini", "text"),
        ("claude-sonnet-4-5", "text"),
        ("meta-llama/Llama-3.3-70B-Instruct", "text"),
        ("qwen3-embedded-systems-coder", "embeddings"),  # in doubt no text goes to it; a table says otherwise
        ("text-embedding-3-small", "embeddings"),
        ("nomic-embed-text", "embeddings"),
        ("Qwen/Qwen3-Embedding-8B", "embeddings"),
        ("BAAI/bge-m3", "embeddings"),
        ("BAAI/bge-reranker-v2-m3", "rerank"),
        ("whisper-1", "audio"),
        ("tts-1-hd", "audio"),
        ("gpt-4o-mini-tts", "audio"),
        ("gpt-4o-transcribe", "audio"),
        ("dall-e-3", "image"),
        ("gpt-image-1", "image"),
        ("gemini-2.5-flash-image", "image"),
        ("omni-moderation-latest", "moderation"),
        ("meta-llama/Llama-Guard-4-12B", "moderation"),
    ],
)
def test_the_name_of_a_model_tells_its_kind(name: str, kind: ModelKind) -> None:
    assert guess_kind(name) == kind


@pytest.mark.parametrize(
    ("item", "kind"),
    [
        ({}, "text"),
        ({"type": "chat"}, "text"),
        ({"type": "embedding"}, "embeddings"),
        ({"type": "rerank"}, "rerank"),
        ({"type": 7}, "text"),
        ({"architecture": {"output_modalities": ["embeddings"]}}, "embeddings"),
        ({"architecture": {"output_modalities": ["image"]}}, "image"),
        ({"architecture": {"output_modalities": ["image", "text"]}}, "text"),
        ({"architecture": None}, "text"),
        ({"supportedGenerationMethods": ["embedContent"]}, "embeddings"),
        ({"supportedGenerationMethods": ["generateContent", "embedContent"]}, "text"),
    ],
)
def test_an_endpoints_own_list_has_precedence(item: dict[str, Any], kind: ModelKind) -> None:
    assert find_kind("acme-1", item) == kind


def uses(model: RemoteModel | DeclaredModel | Model) -> tuple[bool, bool]:
    return model.embeddings, model.any


def test_a_table_has_precedence_over_the_name() -> None:
    assert uses(DeclaredModel.model_validate({"name": "gpt-5"})) == (False, True)
    assert uses(DeclaredModel.model_validate({"name": "gpt-5", "any": False})) == (False, False)
    assert uses(DeclaredModel.model_validate({"name": "whisper-1"})) == (False, False)
    assert uses(DeclaredModel.model_validate({"name": "text-embedding-3-small"})) == (True, False)
    assert uses(DeclaredModel.model_validate({"name": "acme", "embeddings": True})) == (True, False)
    assert uses(DeclaredModel.model_validate({"name": "acme", "embeddings": True, "any": True})) == (
        True,
        True,
    )
    file: dict[str, Any] = {"file": "m.gguf", "memory_mb": 1}
    assert uses(Model.model_validate({"name": "acme", "embeddings": True, **file})) == (True, True)
    assert uses(Model.model_validate({"name": "nomic-embed", **file})) == (True, False)
