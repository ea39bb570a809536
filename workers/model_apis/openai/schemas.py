"""Say whether OpenAI's strict mode takes a JSON schema.

Source: the vendor's guide to structured outputs. Every object is closed (`additionalProperties` false) and
requires all its properties, the root is an object, and some keywords are rejected.
"""

from __future__ import annotations

from gridq.protocol.models import Json

REJECTED = frozenset(
    {
        *("allOf", "oneOf", "not", "dependentRequired", "dependentSchemas", "if", "then", "else"),
        *(
            "patternProperties",
            "propertyNames",
            "unevaluatedProperties",
            "contains",
            "uniqueItems",
            "default",
        ),
    }
)


def is_strict_schema(schema: Json) -> bool:
    """Return whether `schema` can be used with `strict`."""
    return isinstance(schema, dict) and schema.get("type") == "object" and _is_strict(schema)


def _is_strict(schema: Json) -> bool:
    if not isinstance(schema, dict):
        return False
    if schema.keys() & REJECTED:
        return False
    properties = schema.get("properties") or {}
    if schema.get("type") == "object" or properties:
        required = schema.get("required") or []
        if schema.get("additionalProperties") is not False or {*properties} != {*required}:
            return False
    inner = [*properties.values(), *(schema.get("anyOf") or ())]
    for name in ("$defs", "definitions"):
        inner += (schema.get(name) or {}).values()
    if "items" in schema:
        inner.append(schema["items"])
    return all(map(_is_strict, inner))
