"""Check a graph before it runs: every reference resolves, and types fit wherever both sides are known."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping

from gridq.errors import InvalidField, MissingField, TypeMismatch
from gridq.graph.catalogue import Catalogue
from gridq.graph.nodes import (
    Branch,
    Const,
    Fanout,
    Graph,
    Let,
    Merge,
    Node,
    Parallel,
    RemoteStage,
    Retry,
    Sequential,
    Stage,
    child_path,
)
from gridq.graph.plan import WRAP_KEYS
from gridq.graph.types import ANY, Type, fits, infer_type, make_list, make_record, make_union
from gridq.graph.walk import Walk, run
from gridq.protocol.models import Json

NEAR = 0.85
"""How alike a misspelt option is to the one that was meant, as difflib measures it."""

RECORD_FIX = "a stage with a config gets a record: declare its input as a Record or Any, or leave config out"

_RECORDS = ("Record", "RecordWith")
_OPEN = ("Any", "Var", "Union", "Map", "Refined")
"""Kinds of types whose values may or may not be records with certain fields."""


def validate(graph: Graph, catalogue: Catalogue, given: Type = ANY) -> Type:
    """Check `graph` for an input of type `given`, and return the type of its output.

    Raises UnknownStage or AmbiguousStage if `catalogue` cannot resolve a reference, and TypeMismatch, with
    both types and the path, if a stage cannot take the output or config that it gets. InvalidField: a key of
    a config is a misspelt option; MissingField: a stage lacks an option that it needs.
    """
    return run(_Checker(catalogue).check_node(graph.root, "root", given))


def list_needed_from_input(graph: Graph, catalogue: Catalogue) -> list[str]:
    """Return the paths of the options that a stage needs and only its input could have, as far as is known.

    The graph is valid.
    """
    checker = _Checker(catalogue)
    run(checker.check_node(graph.root, "root", ANY))
    return checker.needed_from_input


class _Checker:
    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self.needed_from_input: list[str] = []

    def check_node(self, node: Node, path: str, given: Type) -> Walk[Type]:
        """Check one node for an input of type `given`, and return the type of its output."""
        outputs: dict[str, Type] = {}
        output: Type
        match node:
            case Stage():
                spec = self.catalogue.resolve(node.id, node.pinning, path)
                config = spec.merge_config(node.config)
                options = self.catalogue.find_options(spec)
                _check_option_names(options, node.config or {}, spec.name, child_path(path, "config"))
                if config is not None:
                    given = _apply_config(given, config)
                for name in _find_needed_options(options, given, spec.name, child_path(path, "config")):
                    self.needed_from_input.append(child_path(path, "config", name))
                fix = "" if config is None or _may_be_record(spec.input) else RECORD_FIX
                _check_fit(given, spec.input, f"The stage {spec.name!r}", path, fix)
                return spec.output
            case RemoteStage():
                _check_fit(given, node.input, f"The remote stage {node.url}", path)
                return node.output
            case Const():
                return infer_type(node.value)
            case Sequential():
                for i, stage in enumerate(node.stages):
                    given = yield self.check_node(stage, child_path(path, "stages", i), given)
                return given
            case Parallel():
                for name, child in node.branches.items():
                    outputs[name] = yield self.check_node(
                        child, child_path(path, "branches", name), _get_field_type(given, name, given)
                    )
                return make_record(outputs)
            case Branch():
                yield self.check_node(node.predicate, child_path(path, "predicate"), given)
                taken: Type = yield self.check_node(node.if_true, child_path(path, "if_true"), given)
                other: Type = yield self.check_node(node.if_false, child_path(path, "if_false"), given)
                return make_union((taken, other))
            case Fanout():
                given = yield self.check_node(node.source, child_path(path, "source"), given)
                for i, child in enumerate(node.targets):
                    outputs[str(i)] = yield self.check_node(child, child_path(path, "targets", i), given)
                return make_list(make_union(outputs.values()))
            case Merge():
                for i, child in enumerate(node.sources):
                    name = f"source_{i}"
                    # A record may have more fields than its type says.
                    part = _get_field_type(given, name, ANY if given.kind in _RECORDS else given)
                    outputs[name] = yield self.check_node(child, child_path(path, "sources", i), part)
                output = yield self.check_node(node.target, child_path(path, "target"), make_record(outputs))
                return output
            case Retry():
                output = yield self.check_node(node.stage, child_path(path, "stage"), given)
                return output
            case Let():
                for name, child in node.bindings.items():
                    outputs[name] = yield self.check_node(child, child_path(path, "bindings", name), given)
                output = yield self.check_node(
                    node.body, child_path(path, "body"), _overlay_fields(given, outputs)
                )
                return output
        raise AssertionError(f"no such node: {node!r}")


def _check_option_names(
    options: Mapping[str, bool], config: Mapping[str, Json], stage: str, path: str
) -> None:
    """Raise InvalidField if a key of the config is a misspelt option.

    Other keys are part of the stage's input record, or of its request to a model.
    """
    for key in config:
        if key in options or key in WRAP_KEYS or key.startswith("_"):
            continue
        absent = [name for name in options if name not in config]
        near = difflib.get_close_matches(key.lower().replace("-", "_"), absent, 1, NEAR)
        if near:
            raise InvalidField(
                f"The stage {stage!r} has no option {key!r}",
                {
                    "path": child_path(path, key),
                    "stage": stage,
                    "expected": ", ".join(options),
                    "fix": f"use {near[0]!r}",
                },
            )


def _find_needed_options(options: Mapping[str, bool], given: Type, stage: str, path: str) -> Iterator[str]:
    """Yield the options that the stage needs and an input of type `given` may lack.

    Raises MissingField if it certainly lacks one.
    """
    for name, needed in options.items():
        if needed and given.kind in (*_OPEN, "RecordWith"):
            if name not in given.fields:
                yield name
        elif needed and name not in given.fields:
            raise MissingField(
                f"The stage {stage!r} needs the option {name!r}",
                {
                    "path": child_path(path, name),
                    "stage": stage,
                    "expected": f"{name!r} in the stage's config or its input record",
                    "fix": f'add it to the config: "config": {{"{name}": …}}',
                },
            )


def _may_be_record(kind: Type) -> bool:
    return kind.kind in (*_RECORDS, *_OPEN)


def _check_fit(given: Type, wanted: Type, who: str, path: str, fix: str = "") -> None:
    if not fits(given, wanted):
        raise TypeMismatch(
            f"{who} takes {_shorten(wanted)} but gets {_shorten(given)}",
            {
                "path": path,
                "expected": _shorten(wanted, 400),
                "got": _shorten(given, 400),
                "fix": fix or "put a stage in between that converts the value, or correct the config",
            },
        )


def _shorten(kind: Type, limit: int = 120) -> str:
    text = str(kind)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _get_field_type(given: Type, name: str, otherwise: Type) -> Type:
    """Return the type of a field: `otherwise` if `given` has no such field, Any if that is not known."""
    if given.kind in _RECORDS and name in given.fields:
        return given.fields[name]
    return ANY if given.kind in _OPEN or given.kind == "RecordWith" else otherwise


def _overlay_fields(given: Type, fields: Mapping[str, Type]) -> Type:
    """Return a record of the fields of `given`, if it is a record, overwritten by `fields`."""
    if given.kind in _RECORDS:
        return make_record({**given.fields, **fields}, open=given.kind == "RecordWith")
    return make_record(fields, open=given.kind in _OPEN)


def _apply_config(given: Type, config: Mapping[str, Json]) -> Type:
    """Return the type of a stage's input record after `config` is added."""
    fields = {name: infer_type(value) for name, value in config.items()}
    if given.kind in (*_RECORDS, *_OPEN):
        return _overlay_fields(given, fields)
    key = next((key for key in WRAP_KEYS if key not in config), "items")
    return make_record({key: given, **fields})
