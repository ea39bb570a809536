"""What `/openapi.json` says of the model APIs' routes, whose bodies are read by hand: the little that the
grid looks at. All else is the API's own and passes through.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

MEANINGS = {
    400: "the request is malformed, or the model's endpoint refused it",
    401: "the key is missing, unknown or revoked",
    402: "the job's budget is too small for it",
    403: "the key is not for this",
    404: "nobody serves the model, nor ever did",
    409: "the idempotency key was used for another body, or the job was cancelled",
    413: "the body is too large",
    429: "a limit is reached; Retry-After says when to ask again",
    502: "the model's endpoint failed",
    503: "it cannot be done now; Retry-After says when to ask again",
    504: "the time was over",
}

_TEXT: Schema = {"type": "string", "minLength": 1}
_MODEL: Schema = {**_TEXT, "maxLength": 256, "description": "a model's name, a family's, or `any`"}
_MODELS: Schema = {
    "type": ["array", "null"],
    "items": _MODEL,
    "maxItems": 8,
    "description": "models to make do with, in this order, where nobody can take `model` now",
}
_STREAM: Schema = {"type": ["boolean", "null"], "description": "events as they are made"}
_CHAT = [{"role": "user", "content": "Name a colour."}]

BODIES: dict[str, tuple[Schema, dict[str, Any]]] = {
    "/v1/chat/completions": (
        {"messages": {"type": "array", "items": {"type": "object"}}, "stream": _STREAM},
        {"model": "any", "messages": _CHAT, "max_tokens": 16},
    ),
    "/v1/completions": (
        {"prompt": {"type": ["string", "array"]}, "stream": _STREAM},
        {"model": "any", "prompt": "A colour:", "max_tokens": 4},
    ),
    "/v1/embeddings": ({"input": {"type": ["string", "array"]}}, {"model": "any", "input": "A colour"}),
    "/v1/messages": (
        {"messages": {"type": "array", "items": {"type": "object"}}, "stream": _STREAM},
        {"model": "any", "max_tokens": 16, "messages": _CHAT},
    ),
    "/v1/messages/count_tokens": (
        {"messages": {"type": "array", "items": {"type": "object"}}},
        {"model": "any", "messages": _CHAT},
    ),
}
"""Path → (what of the body the grid or the model's endpoint must have, beside `model`; an example)."""

ANSWERS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1764330000,
        "model": "any",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "Blue."}, "finish_reason": "stop"}
        ],
        "usage": {"prompt_tokens": 11, "completion_tokens": 2, "total_tokens": 13},
    },
    "/v1/completions": {
        "id": "cmpl-1",
        "object": "text_completion",
        "created": 1764330000,
        "model": "any",
        "choices": [{"index": 0, "text": " blue", "finish_reason": "length"}],
    },
    "/v1/embeddings": {
        "object": "list",
        "model": "any",
        "data": [{"object": "embedding", "index": 0, "embedding": [0.1, -0.2]}],
    },
    "/v1/models": {"object": "list", "data": [], "has_more": False},
    "/v1/models/{name}": {"id": "any", "object": "model", "created": 1764330000, "owned_by": "gridq"},
    "/v1/messages": {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "any",
        "content": [{"type": "text", "text": "Blue."}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 11, "output_tokens": 2},
    },
    "/v1/messages/count_tokens": {"input_tokens": 11},
}
"""Path → an answer that is no stream."""

ERRORS: dict[str, Schema] = {
    "OpenAIError": {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["message", "type", "code", "request_id"],
                "properties": {
                    "message": {"type": "string"},
                    "type": {"type": "string"},
                    "param": {"type": ["string", "null"]},
                    "code": {"type": "string", "description": "stable, as in gridq.errors"},
                    "request_id": {"type": "string"},
                },
            }
        },
    },
    "AnthropicError": {
        "type": "object",
        "required": ["type", "error", "request_id"],
        "properties": {
            "type": {"const": "error"},
            "request_id": {"type": "string"},
            "error": {
                "type": "object",
                "required": ["type", "message", "code"],
                "properties": {
                    "type": {"type": "string"},
                    "message": {"type": "string"},
                    "code": {"type": "string", "description": "stable, as in gridq.errors"},
                },
            },
        },
    },
}


def describe(document: dict[str, Any]) -> None:
    """Complete what an OpenAPI document says of the model APIs' routes."""
    document["components"].setdefault("schemas", {}).update(ERRORS)
    for path, operations in document["paths"].items():
        if not path.startswith("/v1/"):
            continue
        api = "AnthropicError" if path.startswith("/v1/messages") else "OpenAIError"
        for method, operation in operations.items():
            operation["responses"] = _responses(path, method, api)
            if path in BODIES:
                operation["requestBody"] = _body(*BODIES[path])


def _body(fields: Schema, example: dict[str, Any]) -> dict[str, Any]:
    schema = {
        "type": "object",
        "required": ["model", *(name for name in fields if name != "stream")],
        "properties": {"model": _MODEL, "models": _MODELS, **fields},
        "example": example,
    }
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def _responses(path: str, method: str, api: str) -> dict[str, Any]:
    content: dict[str, Any] = {
        "application/json": {"schema": {"type": "object"}, "example": ANSWERS.get(path, {})}
    }
    if "stream" in BODIES.get(path, ({},))[0]:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    error = {"application/json": {"schema": {"$ref": f"#/components/schemas/{api}"}}}
    statuses = MEANINGS if method == "post" else (400, 401, 403, 404, 429, 503)
    return {
        "200": {"description": "the answer", "content": content},
        **{str(status): {"description": MEANINGS[status], "content": error} for status in statuses},
    }
