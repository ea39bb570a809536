"""Fit a JSON schema to the structured output of Anthropic's Messages.

Source: the vendor's reference of structured outputs and its SDK. Every object is closed
(`additionalProperties` false), `oneOf` is `anyOf`, and bounds that the API rejects (`minimum`, `pattern`,
`maxItems` …) become a part of the description, which the model reads.
"""

from __future__ import annotations

import json
from typing import Any

from gridq.protocol.models import Json

PASSED = frozenset({"type", "enum", "const", "description", "title", "required", "default", "$ref"})
UNIONS = {"anyOf": "anyOf", "oneOf": "anyOf", "allOf": "allOf"}
DEFINITIONS = ("$defs", "definitions")
FORMATS = frozenset(
    {
        *("date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"),
    }
)


def is_closed(schema: Json) -> bool:
    """Return whether closing its objects leaves the meaning of a schema: none of them is a free map."""
    if isinstance(schema, list):
        return all(map(is_closed, schema))
    if not isinstance(schema, dict):
        return True
    extra = schema.get("additionalProperties")
    is_object = schema.get("type") == "object" or "properties" in schema
    if (
        is_object
        and (extra is True or isinstance(extra, dict) or not schema.get("properties"))
        and extra is not False
    ):
        return False
    inner = [schema.get(name) for name in (*UNIONS, "items")]
    for name in ("properties", *DEFINITIONS):
        inner += list((schema.get(name) or {}).values())
    return all(map(is_closed, inner))


def fit_schema(schema: Json) -> Json:
    """Return the schema as Messages take it. Other values than objects stay as they are."""
    if not isinstance(schema, dict):
        return schema
    fitted: dict[str, Any] = {}
    notes: dict[str, Json] = {}
    for name, value in schema.items():
        if (
            name in PASSED
            or (name == "format" and value in FORMATS)
            or (name == "minItems" and value in (0, 1))
        ):
            fitted[name] = value
        elif name in UNIONS:
            fitted[UNIONS[name]] = [*map(fit_schema, value)]
        elif name == "properties" or name in DEFINITIONS:
            fitted[name] = {key: fit_schema(each) for key, each in value.items()}
        elif name == "items" and isinstance(value, dict):
            fitted[name] = fit_schema(value)
        elif name not in ("additionalProperties", "$schema", "$id"):
            notes[name] = value
    if fitted.get("type") == "object" or "properties" in fitted:
        fitted["additionalProperties"] = False
    if notes:
        stated = ", ".join(
            f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in notes.items()
        )
        fitted["description"] = "\n\n".join(filter(None, (fitted.get("description"), f"{{{stated}}}")))
    return fitted
