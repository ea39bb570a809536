"""What `/openapi.json` says beside the routes themselves: how to authenticate, and what the groups are."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from gridq.gateway.http import model_api_docs

TAGS = [
    {"name": "openai", "description": "OpenAI's API: change the base URL, and its clients use the grid."},
    {"name": "anthropic", "description": "Anthropic's API, in the same way."},
    {"name": "jobs", "description": "Graphs: submit, wait, follow, cancel, list."},
    {"name": "workers", "description": "The live seats, and draining them."},
    {"name": "queues", "description": "What waits where, what can be asked for, what is in quarantine."},
    {"name": "health", "description": "For whoever watches, restarts and sends work."},
]

SCHEMES = {
    "bearer": {
        "type": "http",
        "scheme": "bearer",
        "description": "an API key, `gq_<id>_<secret>`, as `gridq keys create` prints it",
    },
    "key": {"type": "apiKey", "in": "header", "name": "X-API-Key", "description": "the same key"},
    "secret": {
        "type": "apiKey",
        "in": "header",
        "name": "X-Grid-Secret",
        "description": "what workers that come over HTTP show: GRIDQ_GATEWAY_SECRET of the gateway",
    },
}

PUBLIC_PATHS = frozenset(("/health", "/ready"))
"""What nobody needs a key for. A grid without keys asks for none anywhere."""

WORKER_OPERATIONS = (("/workers", "post"), ("/workers/{id}/heartbeat", "post"), ("/workers/{id}", "delete"))
"""What a worker asks, who shows the grid's secret and no key."""


def describe(app: FastAPI) -> None:
    """Have `app` tell its groups and its authentication."""

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
                    operation["responses"].pop("422", None)  # what does not fit is a 400 here
                    if path in PUBLIC_PATHS:
                        operation["security"] = []
                    elif (path, method) in WORKER_OPERATIONS:
                        operation["security"] = [{"secret": []}, {}]  # one without a secret asks for none
            for name in ("HTTPValidationError", "ValidationError"):
                made["components"]["schemas"].pop(name, None)
            app.openapi_schema = made
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]
