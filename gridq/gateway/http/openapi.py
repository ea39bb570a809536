"""Complete `/openapi.json`: authentication, the tags, and the model APIs' routes."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from gridq.gateway.http import model_api_docs

TAGS = [
    {"name": "openai", "description": "The OpenAI API. Point the base URL of your client at `/v1`."},
    {"name": "anthropic", "description": "The Anthropic API. Point the base URL of your client here."},
    {"name": "jobs", "description": "Submit graphs as jobs, wait for them, follow, cancel and list them."},
    {"name": "workers", "description": "List seats, drain them, and enrol workers over HTTP."},
    {"name": "queues", "description": "Queues, the capabilities on offer, and quarantined stages."},
    {"name": "health", "description": "Liveness, readiness and metrics."},
]

SCHEMES = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "An API key, `gq_<id>_<secret>`, as `gridq keys create` prints it.",
    },
    "key": {"type": "apiKey", "in": "header", "name": "X-API-Key", "description": "The same API key."},
    "secret": {
        "type": "apiKey",
        "in": "header",
        "name": "X-Grid-Secret",
        "description": "The worker secret, GRIDQ_GATEWAY_WORKER_SECRET at the gateway.",
    },
}

PUBLIC_PATHS = frozenset(("/health", "/ready"))
"""Paths that never need an API key."""

WORKER_OPERATIONS = (("/workers", "post"), ("/workers/{id}/heartbeat", "post"), ("/workers/{id}", "delete"))
"""Operations of workers over HTTP, which send the worker secret instead of an API key."""


def describe(app: FastAPI) -> None:
    """Have `app` generate the completed OpenAPI document."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            made = get_openapi(
                title=app.title,
                version=app.version,
                description=app.description,
                routes=app.routes,
                tags=TAGS,
            )
            made.setdefault("components", {})["securitySchemes"] = SCHEMES
            made["security"] = [{"bearer": []}, {"key": []}]
            model_api_docs.describe(made)
            for path, operations in made["paths"].items():
                for method, operation in operations.items():
                    operation["responses"].pop("422", None)  # validation errors are 400 here
                    if path in PUBLIC_PATHS:
                        operation["security"] = []
                    elif (path, method) in WORKER_OPERATIONS:
                        operation["security"] = [{"secret": []}, {}]  # a gateway without a secret needs none
            for name in ("HTTPValidationError", "ValidationError"):
                made["components"]["schemas"].pop(name, None)
            app.openapi_schema = made
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]
