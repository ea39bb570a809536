"""Fit a JSON schema to the structured output and the strict tools of Anthropic's Messages.

Source: the vendor's reference of structured outputs and its SDK. Every object is closed
(`additionalProperties` false), `oneOf` is `anyOf`, and bounds that the API rejects (`minimum`, `pattern`,
`maxItems` …) become a part of the description, which the model reads.
"""

from __future__ import annotations

import json
from typing import Any

from gridq.protocol.models import Json
from workers.model_apis.fields.table import Drop

PASSED = frozenset({"type", "enum", "const", "description", "title", "required", "default", "$ref"})
UNIONS = {"anyOf": "anyOf", "oneOf": "anyOf", "allOf": "allOf"}
DEFINITIONS = ("$defs", "definitions")
IGNORED = ("additionalProperties", "$schema", "$id")
FORMATS = frozenset(
    {
        *("date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"),
    }
)


class _OpenSchemaError(Exception):
    """The schema has a free map: an object that cannot be closed without changing its meaning."""


def fit_schema(schema: Json, place: str, drop: Drop) -> Json:
    """Return the schema as Messages take it, None if it has a free map, which they cannot describe.

    `drop` is told each bound at `place` that became a description.
    """
    dropped: list[str] = []
    try:
        fitted = _fit(schema, place, dropped.append)
    except _OpenSchemaError:
        return None
    for each in dropped:
        drop(each)
    return fitted


def _fit(schema: Json, place: str, drop: Drop) -> Json:
    """Return a part of a schema. Other values than objects stay as they are. Raises _OpenSchemaError."""
    if not isinstance(schema, dict):
        return schema
    fitted: dict[str, Any] = {}
    notes: dict[str, Json] = {}
    for name, value in schema.items():
        where = f"{place}.{name}"
        if (
            name in PASSED
            or (name == "format" and value in FORMATS)
            or (name == "minItems" and value in (0, 1))
        ):
            fitted[name] = value
        elif name in UNIONS:
            fitted[UNIONS[name]] = [_fit(each, f"{where}[{at}]", drop) for at, each in enumerate(value)]
        elif name == "properties" or name in DEFINITIONS:
            fitted[name] = {key: _fit(each, f"{where}.{key}", drop) for key, each in (value or {}).items()}
        elif name == "items" and isinstance(value, dict):
            fitted[name] = _fit(value, where, drop)
        elif name not in IGNORED:
            notes[name] = value
            drop(where)
    if fitted.get("type") == "object" or "properties" in fitted:
        if not _is_closed(schema):
            raise _OpenSchemaError
        fitted["additionalProperties"] = False
    if notes:
        stated = ", ".join(
            f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in notes.items()
        )
        fitted["description"] = "\n\n".join(filter(None, (fitted.get("description"), f"{{{stated}}}")))
    return fitted


def _is_closed(schema: dict[str, Json]) -> bool:
    """Return whether an object has the properties that it names and, as far as is said, no others."""
    extra = schema.get("additionalProperties")
    is_map = extra is True or isinstance(extra, dict)
    return extra is False or not (is_map or not schema.get("properties"))
