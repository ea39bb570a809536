"""Text templates: `{{name}}`, `{{a.b[0]}}`, `{{.}}` for the input itself; `|url`, `|json`, `|html` to escape.

Text is inserted as it is, anything else as JSON. Inserted text is never parsed as a template.
"""

from __future__ import annotations

import html
import json
import urllib.parse
from collections.abc import Callable
from dataclasses import dataclass

from gridq.graph.plan import WRAP_KEYS
from gridq.protocol.models import Json
from gridq.stages.pure.bounds import MAX_PARTS, Clock, OutputRoom, describe_kind, make_input_error
from gridq.stages.pure.paths import Missing, Path, describe_missing, find_first, format_path, parse_path

_SUBJECT_NAMES = frozenset((*WRAP_KEYS, "item", "value"))
"""Names for an input that is not a record, so that a template need not know how its input was wrapped."""


def format_value(value: Json) -> str:
    """Return a text as it is, anything else as compact JSON."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _quote_url(text: str) -> str:
    try:
        return urllib.parse.quote(text, safe="")
    except UnicodeEncodeError:
        raise make_input_error(
            "A text for `|url` has half a surrogate pair", "text that UTF-8 can encode"
        ) from None


FILTERS: dict[str, Callable[[Json], str]] = {
    "json": lambda value: json.dumps(value, ensure_ascii=False, separators=(",", ":")),
    "html": lambda value: html.escape(format_value(value)),
    "url": lambda value: _quote_url(format_value(value)),
}


@dataclass(frozen=True, slots=True)
class Placeholder:
    """One `{{path|filter}}`."""

    path: Path
    render: Callable[[Json], str]


Template = list[str | Placeholder]


def compile_template(text: Json) -> Template:
    """Return the literals and placeholders of `text`; raise StageError if it is not a valid template."""
    if not isinstance(text, str):
        raise make_input_error(
            f"A template must be text, not {describe_kind(text)}", "text such as 'Hello {{name}}'"
        )
    parts: Template = []
    at = 0
    while (start := text.find("{{", at)) >= 0:
        end = text.find("}}", start)
        if end < 0:
            raise make_input_error(
                f"The template has '{{{{' at character {start} and no '}}}}' after it", "'{{name}}'"
            )
        if len(parts) >= 2 * MAX_PARTS:
            raise make_input_error(
                "The template has too many placeholders", f"at most {MAX_PARTS} placeholders"
            )
        parts.append(text[at:start])
        parts.append(_parse_placeholder(text[start + 2 : end]))
        at = end + 2
    parts.append(text[at:])
    return parts


def _parse_placeholder(inner: str) -> Placeholder:
    name, bar, filter_name = (part.strip() for part in inner.partition("|"))
    if not name:
        raise make_input_error(
            "The template has an empty placeholder", "'{{name}}', or '{{.}}' for the input itself"
        )
    if bar and filter_name not in FILTERS:
        raise make_input_error(
            f"The template has the unknown filter {filter_name!r}", "one of " + ", ".join(sorted(FILTERS))
        )
    return Placeholder(parse_path(name), FILTERS[filter_name] if bar else format_value)


def render(template: Template, roots: tuple[Json, ...], clock: Clock, room: OutputRoom) -> str:
    """Return `template` filled in from `roots`; raise StageError if a path does not exist."""
    pieces: list[str] = []
    for part in template:
        clock.tick()
        pieces.append(room.take(part if isinstance(part, str) else part.render(_get_value(roots, part.path))))
    return "".join(pieces)


def _get_value(roots: tuple[Json, ...], path: Path) -> Json:
    value = find_first(roots, path)
    if not isinstance(value, Missing):
        return value
    if len(path) == 1 and path[0] in _SUBJECT_NAMES and not isinstance(roots[-1], dict):
        return roots[-1]
    lost, near = describe_missing(roots[0], path)
    raise make_input_error(
        f"The template's {{{{{format_path(path)}}}}} has no value: {lost}",
        "a value for every placeholder",
        near,
    )
