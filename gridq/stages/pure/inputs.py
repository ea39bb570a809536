"""Find the subject and the options of a built-in stage in its input.

With `config`, an input that is not a record arrives under one of WRAP_KEYS (`items` first) next to the
config's keys; without `config`, it arrives as it is. So every built-in stage accepts its subject bare, under
a name, or as the record itself:

- A stage for a text or a list takes it bare, or from the first of its names that has one. It also takes a
  list from the `source_0`, `source_1`, … of a Merge.
- Any other stage takes the record without the stage's own options. If an option was given and exactly one of
  WRAP_KEYS is left, the value of that key is the subject. A path starts from the record first, then from the
  subject.
"""

from __future__ import annotations

from typing import TypeVar

from gridq.graph.plan import WRAP_KEYS
from gridq.protocol.models import Json
from gridq.stages.pure.bounds import describe_kind, make_input_error, make_missing_option_error
from gridq.stages.pure.paths import Missing, Path, describe_missing, find_first, format_path, parse_path

TEXT_NAMES = (
    "text", "json_str", "data", "body", "input", "document", "html", "csv", "items", "records", "train",
)  # fmt: skip
LIST_NAMES = ("items", "data", "records", "input", "train", "text", "document", "html", "csv", "json_str")

T = TypeVar("T")


def get_options(value: Json, names: tuple[str, ...]) -> dict[str, Json]:
    """Return the options of `names` that the input record has; null counts as not given."""
    if not isinstance(value, dict):
        return {}
    return {name: value[name] for name in names if value.get(name) is not None}


def get_option(options: dict[str, Json], name: str, wanted: type[T], default: T | None = None) -> T:
    """Return the option `name`, or `default` if it is missing.

    Raises StageError if it has another type than `wanted`, or is missing and has no default.
    """
    if name not in options:
        if default is None:
            raise make_missing_option_error(name)
        return default
    value = options[name]
    if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
        expected = {str: "text", bool: "true or false", int: "an integer", dict: "a record", list: "a list"}
        raise make_input_error(
            f"The option {name!r} is {describe_kind(value)}", expected.get(wanted, wanted.__name__)
        )
    return value


def get_roots(value: Json, names: tuple[str, ...]) -> tuple[Json, ...]:
    """Return the values that a path may start from, in order.

    The last one is the subject. `names` are the options of the stage.
    """
    if not isinstance(value, dict):
        return (value,)
    rest = {key: part for key, part in value.items() if key not in names}
    if len(rest) == 1 and len(value) > 1 and next(iter(rest)) in WRAP_KEYS:
        return (rest, next(iter(rest.values())))
    return (rest,)


def get_path_option(options: dict[str, Json]) -> Path:
    """Return the option `path`; empty if it is not given."""
    return parse_path(options["path"]) if "path" in options else ()


def require_value(roots: tuple[Json, ...], path: Path) -> Json:
    """Return the value at `path`; raise StageError, with the place where it ends, if there is none."""
    value = find_first(roots, path)
    if isinstance(value, Missing):
        lost, near = describe_missing(roots[-1], path)  # the key that wraps a bare input would only confuse
        raise make_input_error(
            f"There is no value at {format_path(path)!r}: {lost}",
            "a path that the input has, or a `default`",
            near,
        )
    return value


def get_text(value: Json, *names: str) -> str:
    """Return `value` if it is a text, else the text under one of `names` or TEXT_NAMES.

    Raises StageError if there is none.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        for name in (*names, *TEXT_NAMES):
            if isinstance(value.get(name), str):
                return str(value[name])
    raise make_input_error(
        f"The input is {describe_kind(value)}"
        + (" without text" if isinstance(value, dict) else ", not text"),
        "text, or a record with text under " + ", ".join((*names, *TEXT_NAMES[:5])),
    )


def get_list(value: Json) -> list[Json]:
    """Return `value` if it is a list, else the list that it contains; raise StageError if there is none."""
    if isinstance(value, list):
        return value
    if isinstance(value, dict):
        for name in LIST_NAMES:
            if isinstance(value.get(name), list):
                return list(value[name])
        if "source_0" in value:
            return get_sources(value)
    raise make_input_error(
        f"The input is {describe_kind(value)}"
        + (" without a list" if isinstance(value, dict) else ", not a list"),
        "a list, or a record with one under " + ", ".join(LIST_NAMES[:4]),
    )


def get_sources(value: dict[str, Json]) -> list[Json]:
    """Return the `source_0`, `source_1`, … of a Merge, in order."""
    found: list[Json] = []
    while (name := f"source_{len(found)}") in value:
        found.append(value[name])
    return found
