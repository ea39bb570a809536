"""The OpenAPI description of the model APIs' routes, whose bodies are parsed by hand.

It covers the few fields that the gateway reads; all others belong to the API and pass through.
"""

from __future__ import annotations

from typing import Any

from gridq.gateway.http.errors import ANTHROPIC_PATH, MODEL_API_PATH

Schema = dict[str, Any]

STATUS_DESCRIPTIONS = {
    400: "The request is invalid, or the model's endpoint refused it.",
    401: "The API key is missing, invalid or revoked.",
    402: "The request would cost more than its budget.",
    403: "The API key lacks the scope `submit`, or the origin is not allowed.",
    404: "No seat serves the model, or ever did.",
    409: "The idempotency key was used with another body, or the job was cancelled.",
    413: "The body is too large.",
    429: "A limit is reached. Retry-After says when to retry.",
    502: "The model's endpoint failed.",
    503: "The grid cannot take the request now. Retry-After says when to retry.",
    504: "The request did not finish before its deadline.",
}

_TEXT: Schema = {"type": "string", "minLength": 1}
_MODEL: Schema = {**_TEXT, "maxLength": 256, "description": "The name of a model or family, or `any`."}
_MODELS: Schema = {
    "type": ["array", "null"],
    "items": _MODEL,
    "maxItems": 8,
    "description": "Fallback models, in this order, if no seat can take `model` now.",
}
_STREAM: Schema = {"type": ["boolean", "null"], "description": "Stream the response as server-sent events."}
_CHAT = [{"role": "user", "content": "Name a colour."}]

_RESPONSE: dict[str, Any] = {
    "id": "resp_0f8fad5bd9cb469fa16570867728950e",
    "object": "response",
    "created_at": 1764330000,
    "status": "completed",
    "model": "any",
    "store": False,
    "output": [
        {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "Blue.", "annotations": []}],
        }
    ],
    "usage": {"input_tokens": 11, "output_tokens": 2, "total_tokens": 13},
}

REQUEST_BODIES: dict[str, tuple[Schema, dict[str, Any]]] = {
    "/v1/chat/completions": (
        {"messages": {"type": "array", "items": {"type": "object"}}, "stream": _STREAM},
        {"model": "any", "messages": _CHAT, "max_tokens": 16},
    ),
    "/v1/completions": (
        {"prompt": {"type": ["string", "array"]}, "stream": _STREAM},
        {"model": "any", "prompt": "A colour:", "max_tokens": 4},
    ),
    "/v1/embeddings": ({"input": {"type": ["string", "array"]}}, {"model": "any", "input": "A colour"}),
    "/v1/responses": (
        {
            "input": {"type": ["string", "array"]},
            "stream": _STREAM,
        },
        {"model": "any", "input": "Name a colour.", "max_output_tokens": 16},
    ),
    "/v1/responses/input_tokens": (
        {"input": {"type": ["string", "array"]}},
        {"model": "any", "input": "Name a colour."},
    ),
    "/v1/messages": (
        {"messages": {"type": "array", "items": {"type": "object"}}, "stream": _STREAM},
        {"model": "any", "max_tokens": 16, "messages": _CHAT},
    ),
    "/v1/messages/count_tokens": (
        {"messages": {"type": "array", "items": {"type": "object"}}},
        {"model": "any", "messages": _CHAT},
    ),
}
"""Path → (the fields that the grid or the model's endpoint needs, beside `model`; an example)."""

RESPONSE_EXAMPLES: dict[str, dict[str, Any]] = {
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
    "/v1/responses": _RESPONSE,
    "/v1/responses/input_tokens": {"object": "response.input_tokens", "input_tokens": 5},
    "/v1/responses/{id}": _RESPONSE,
    "/v1/responses/{id}/cancel": {**_RESPONSE, "status": "cancelled", "output": []},
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
"""Path → an example of a response that is not streamed."""

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
                    "code": {"type": "string", "description": "The stable error code."},
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
                    "code": {"type": "string", "description": "The stable error code."},
                },
            },
        },
    },
}


def describe(document: dict[str, Any]) -> None:
    """Complete the description of the model APIs' routes in an OpenAPI document."""
    document["components"].setdefault("schemas", {}).update(ERRORS)
    for path, operations in document["paths"].items():
        if not path.startswith(MODEL_API_PATH):
            continue
        api = "AnthropicError" if path.startswith(ANTHROPIC_PATH) else "OpenAIError"
        for method, operation in operations.items():
            operation["responses"] = _describe_responses(path, method, api)
            if path in REQUEST_BODIES:
                operation["requestBody"] = _describe_body(*REQUEST_BODIES[path])


def _describe_body(fields: Schema, example: dict[str, Any]) -> dict[str, Any]:
    schema = {
        "type": "object",
        "required": [name for name in fields if name != "stream"],
        "anyOf": [
            {"required": ["model"]},
            {"required": ["models"], "properties": {"models": {"type": "array", "minItems": 1}}},
        ],
        "properties": {"model": _MODEL, "models": _MODELS, **fields},
        "example": example,
    }
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def _describe_responses(path: str, method: str, api: str) -> dict[str, Any]:
    content: dict[str, Any] = {
        "application/json": {"schema": {"type": "object"}, "example": RESPONSE_EXAMPLES.get(path, {})}
    }
    if "stream" in REQUEST_BODIES.get(path, ({},))[0] or (path, method) == ("/v1/responses/{id}", "get"):
        content["text/event-stream"] = {"schema": {"type": "string"}}
    error = {"application/json": {"schema": {"$ref": f"#/components/schemas/{api}"}}}
    statuses = STATUS_DESCRIPTIONS if method == "post" else (400, 401, 403, 404, 429, 503)
    return {
        "200": {"description": "The response.", "content": content},
        **{
            str(status): {"description": STATUS_DESCRIPTIONS[status], "content": error} for status in statuses
        },
    }
