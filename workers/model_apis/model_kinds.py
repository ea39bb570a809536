"""Tell what a model is for: from its endpoint's own list of models, else from its name.

| endpoint | field of its list |
|---|---|
| Together | `type` |
| OpenRouter | `architecture.output_modalities` |
| Mistral | `capabilities` |
| Google | `supportedGenerationMethods` |

OpenAI, Groq, vLLM and most others state nothing, so NAMES decides there. Extend it when a vendor brings out
models with a new name.
"""

from __future__ import annotations

import re
from typing import Literal

from gridq.protocol.models import Json

ModelKind = Literal["text", "embeddings", "rerank", "audio", "image", "moderation"]

NAMES: dict[ModelKind, re.Pattern[str]] = {
    "rerank": re.compile(r"rerank"),
    "embeddings": re.compile(r"embed|^(bge|gte|e5|multilingual-e5|voyage|all-minilm|all-mpnet)-|^m2-bert"),
    "moderation": re.compile(r"moderation|(llama|prompt)-guard|shieldgemma"),
    "audio": re.compile(r"whisper|transcribe|parakeet|(^|-)tts(-|$)|realtime|^orpheus-|^lyria"),
    "image": re.compile(
        r"^dall-e|gpt-image|^imagen|stable-diffusion|^sdxl|^flux|-image(-|$)|^(sora|veo)(-|$)"
    ),
}
"""Patterns of models that do not write text, tried in this order, in the last part of a lower-case name."""

TYPES: dict[str, ModelKind] = {
    "embedding": "embeddings", "embeddings": "embeddings", "rerank": "rerank", "moderation": "moderation",
    "image": "image", "video": "image", "audio": "audio", "transcribe": "audio",
}  # fmt: skip
"""The kinds by Together's `type` and OpenRouter's output modalities. All others write text."""


def guess_kind(name: str) -> ModelKind:
    """Return the kind of the model `name` by NAMES; "text" if no pattern matches."""
    last = name.lower().rstrip("/").rpartition("/")[2]
    return next((kind for kind, pattern in NAMES.items() if pattern.search(last)), "text")


def find_kind(name: str, item: dict[str, Json]) -> ModelKind:
    """Return the kind of a model by its item in the endpoint's list, by its name if that states none."""
    kind = item.get("type")
    if isinstance(kind, str) and kind in TYPES:
        return TYPES[kind]
    architecture = item.get("architecture")
    outputs = architecture.get("output_modalities") if isinstance(architecture, dict) else None
    if isinstance(outputs, list) and outputs and "text" not in outputs:
        return next((TYPES[each] for each in outputs if isinstance(each, str) and each in TYPES), "image")
    methods = item.get("supportedGenerationMethods")
    if isinstance(methods, list) and "embedContent" in methods and "generateContent" not in methods:
        return "embeddings"
    return guess_kind(name)


def add_uses(table: Json, *, only_embeddings: bool) -> Json:
    """Return the table of a model with `embeddings` and `any` where it states neither.

    `only_embeddings`: a model with embeddings writes no text, as at endpoints; not so with engines.
    """
    if not isinstance(table, dict) or not isinstance(table.get("name"), str):
        return table
    kind = guess_kind(table["name"])
    has_embeddings = table.get("embeddings", kind == "embeddings")
    takes_any = kind == "text" and not (only_embeddings and has_embeddings is True)
    return {"embeddings": has_embeddings, "any": takes_any, **table}
