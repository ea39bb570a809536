"""The built-in stages without effects: functions that end in bounded time and raise only StageError.

gridq.stages.pure.inputs describes how a stage finds its subject and its options in its input.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from gridq.protocol.models import Json
from gridq.stages.pure import conditions, json_parsing, patterns, templates
from gridq.stages.pure.bounds import (
    MAX_PARTS,
    Clock,
    OutputRoom,
    describe_kind,
    make_input_error,
    make_missing_option_error,
)
from gridq.stages.pure.inputs import (
    get_list,
    get_option,
    get_options,
    get_path_option,
    get_roots,
    get_sources,
    get_text,
    require_value,
)
from gridq.stages.pure.paths import Missing, find_first, follow, format_path, parse_path

Function = Callable[[Json], Json]


def text_template(value: Json) -> str:
    """Fill in `template` from `variables`, if given, and from the rest of the input record."""
    options = get_options(value, ("template", "variables"))
    template = templates.compile_template(get_option(options, "template", str))
    roots = get_roots(value, ("template", "variables"))
    if "variables" in options:
        roots = (get_option(options, "variables", dict), *roots)
    return templates.render(template, roots, Clock(), OutputRoom())


def parse_json(value: Json) -> Json:
    """Parse a JSON text; with `extract`, the first record or list in it."""
    options = get_options(value, ("extract",))
    text = get_text(value, "json_str", "text", "body")
    return (
        json_parsing.extract(text, Clock())
        if get_option(options, "extract", bool, False)
        else json_parsing.parse(text)
    )


def format_json(value: Json) -> str:
    """Return the input as JSON text, compact or indented by `indent` spaces."""
    options = get_options(value, ("indent",))
    indent = get_option(options, "indent", int, 0)
    if not 0 <= indent <= 8:
        raise make_input_error(f"The indent is {indent}", "0 to 8 spaces")
    subject = get_roots(value, ("indent",))[-1] if options else value
    if indent:
        return json.dumps(subject, ensure_ascii=False, indent=indent)
    return json.dumps(subject, ensure_ascii=False, separators=(",", ":"))


def pick(value: Json) -> Json:
    """Return the value at `path`, or `default` (null too, if given) if there is none."""
    options = get_options(value, ("path",))
    path = parse_path(get_option(options, "path", str))
    roots = get_roots(value, ("path", "default"))
    if isinstance(value, dict) and "default" in value:
        picked = find_first(roots, path)
        return value["default"] if isinstance(picked, Missing) else picked
    return require_value(roots, path)


def map_items(value: Json) -> list[Json]:
    """Change each item by one of `pick` (a path), `template` (a text) or `fields` ({name: path})."""
    options = get_options(value, ("pick", "template", "fields"))
    if len(options) != 1:
        raise make_input_error(
            "The stage needs one of 'pick', 'template' and 'fields', not "
            + (" and ".join(options) or "none"),
            'for example {"pick": "a.b"}, {"template": "{{a}}"} or {"fields": {"name": "a.b"}}',
        )
    items, clock, room = get_list(value), Clock(), OutputRoom()
    has_default = isinstance(value, dict) and "default" in value

    def get_at(item: Json, path: Json, index: int) -> Json:
        clock.tick()
        found = follow(item, path)
        if not isinstance(found, Missing):
            return found
        if has_default:
            return value["default"]
        raise make_input_error(
            f"Element {index} has nothing at {format_path(path)!r}",
            "every element with that path, or a `default`",
        )

    if "pick" in options:
        path = parse_path(options["pick"])
        return [get_at(item, path, index) for index, item in enumerate(items)]
    if "template" in options:
        template = templates.compile_template(options["template"])
        return [templates.render(template, (item,), clock, room) for item in items]
    fields = get_option(options, "fields", dict)
    if len(fields) > MAX_PARTS:
        raise make_input_error("There are too many fields", f"at most {MAX_PARTS}")
    paths = {name: parse_path(path) for name, path in fields.items()}
    return [
        {name: get_at(item, path, index) for name, path in paths.items()} for index, item in enumerate(items)
    ]


def filter_items(value: Json) -> list[Json]:
    """Return the items for which the condition `where` holds."""
    options = get_options(value, ("where",))
    condition = conditions.compile_condition(get_option(options, "where", dict), Clock())
    return [item for item in get_list(value) if condition((item,))]


def join(value: Json) -> str:
    """Join the items with `separator` (a line break by default); items that are not text become JSON."""
    separator = get_option(get_options(value, ("separator",)), "separator", str, "\n")
    room = OutputRoom()
    items = get_list(value)
    texts: list[str] = []
    for index, item in enumerate(items):
        texts.append(room.take(templates.format_value(item)))
        if index:
            room.take(separator)
    return separator.join(texts)


def merge(value: Json) -> Json:
    """Merge records, where later ones win (with `deep`, inside them too), or concatenate lists.

    The parts are the elements of a list, the sources of a Merge, or else the values of the input record in
    their order. null is skipped.
    """
    deep = get_option(get_options(value, ("deep",)), "deep", bool, False)
    parts = _list_parts(value)
    if all(isinstance(part, list) for part in parts) and parts:
        return [item for part in parts for item in part]
    merged: dict[str, Json] = {}
    for part in parts:
        if not isinstance(part, dict):
            raise make_input_error(f"Cannot merge {describe_kind(part)}", "records only, or lists only")
        _overlay_fields(merged, part, deep)
    return merged


def _list_parts(value: Json) -> list[Json]:
    parts = value
    if isinstance(value, dict):
        rest = {name: part for name, part in value.items() if name != "deep"}
        if "source_0" in rest:
            parts = get_sources(rest)
        elif rest.keys() == {"items"} and isinstance(rest["items"], list):
            parts = rest["items"]
        else:
            parts = list(rest.values())
    return [part for part in (parts if isinstance(parts, list) else [parts]) if part is not None]


def _overlay_fields(base: dict[str, Json], patch: dict[str, Json], deep: bool) -> None:
    for name, part in patch.items():
        if deep and isinstance(part, dict):
            under = base.get(name)
            # Every record in `base` was created here, so those of the caller never change.
            base[name] = under if isinstance(under, dict) else {}
            _overlay_fields(base[name], part, deep)
        else:
            base[name] = part


def regex_extract(value: Json) -> Json:
    """Return the first match of `pattern` in the text, or null; with `all`, the list of all matches.

    `group` is a number or a name. The default is 1 if the pattern has groups, else 0, the whole match.
    """
    options = get_options(value, ("pattern", "group", "all"))
    clock, room = Clock(), OutputRoom()
    regex = patterns.compile_pattern(get_option(options, "pattern", str))
    group = _find_group(regex, options.get("group"))
    matches = patterns.find_all(regex, get_text(value), clock)
    if not get_option(options, "all", bool, False):
        match = next(matches, None)
        return None if match is None else match.group(group)
    found: list[Json] = []
    for match in matches:
        text = match.group(group)
        # Two quotes and a comma: empty matches need room too.
        room.take(f'"{text}",')
        found.append(text)
    return found


def _find_group(regex: Any, wanted: Json) -> int:
    groups: int = regex.groups
    names: dict[str, int] = regex.groupindex
    if wanted is None:
        return min(1, groups)
    if isinstance(wanted, str) and wanted in names:
        return names[wanted]
    if isinstance(wanted, int) and not isinstance(wanted, bool) and 0 <= wanted <= groups:
        return wanted
    raise make_input_error(
        f"The pattern has no group {wanted!r}",
        f"a number from 0 to {groups}" + (" or one of " + ", ".join(sorted(names)) if names else ""),
    )


def equals(value: Json) -> bool:
    """Return whether the input, or the value at `path` (null if there is none), equals `to`."""
    if not isinstance(value, dict) or "to" not in value:
        raise make_missing_option_error("to")
    return conditions.are_equal(_get_subject(value, "to"), value["to"])


def contains(value: Json) -> bool:
    """Return whether the input, or the value at `path`, contains `item` as a part, an element or a key."""
    if not isinstance(value, dict) or "item" not in value:
        raise make_missing_option_error("item")
    return conditions.contains(_get_subject(value, "item"), value["item"])


def matches(value: Json) -> bool:
    """Return whether `pattern` matches anywhere in the text, or in the text at `path` if there is one."""
    options = get_options(value, ("pattern", "path"))
    regex = patterns.compile_pattern(get_option(options, "pattern", str))
    text = _get_subject(value, "pattern") if "path" in options else get_text(value)
    return isinstance(text, str) and patterns.matches(regex, text, Clock())


def is_empty(value: Json) -> bool:
    """Return whether the input, or the value at `path`, is missing, null or empty."""
    return conditions.is_empty(_get_subject(value))


def length(value: Json) -> int:
    """Return the length of the input, or of the value at `path`: characters, elements or keys; null has 0."""
    subject = _get_subject(value)
    if subject is None:
        return 0
    if not isinstance(subject, str | list | dict):
        raise make_input_error(
            f"The input is {describe_kind(subject)}, which has no length", "text, a list, a record or null"
        )
    return len(subject)


def _get_subject(value: Json, *names: str) -> Json:
    found = find_first(get_roots(value, (*names, "path")), get_path_option(get_options(value, ("path",))))
    return None if isinstance(found, Missing) else found


def test(value: Json) -> bool:
    """Return whether the condition `where` holds for the input."""
    options = get_options(value, ("where",))
    return conditions.compile_condition(get_option(options, "where", dict), Clock())(
        get_roots(value, ("where",))
    )


def http_body(value: Json) -> str:
    """Return the body of an HTTP response."""
    return get_text(value, "body")


FUNCTIONS: dict[str, Function] = {
    "contains": contains,
    "equals": equals,
    "filter": filter_items,
    "format_json": format_json,
    "http_body": http_body,
    "is_empty": is_empty,
    "join": join,
    "length": length,
    "map": map_items,
    "matches": matches,
    "merge": merge,
    "parse_json": parse_json,
    "pick": pick,
    "regex_extract": regex_extract,
    "test": test,
    "text_template": text_template,
}
"""The pure built-in stages, by the part of their implementation after `builtin:`."""


def run_pure(name: str, value: Json) -> Json:
    """Run the pure built-in stage `name` and return its output; raise StageError if the input is invalid."""
    try:
        return FUNCTIONS[name](value)
    except RecursionError:
        raise make_input_error(
            "The input is nested too deeply", "JSON nested at most a few hundred levels deep"
        ) from None
