"""The catalogue of stages: their specifications, their ids, and the resolution of references."""

from __future__ import annotations

import bisect
import difflib
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gridq.errors import (
    AmbiguousStage,
    ConfigError,
    GraphError,
    InvalidField,
    InvalidJson,
    MissingField,
    UnknownStage,
    quote,
)
from gridq.graph import effects as effect_rules
from gridq.graph.canonical import hash_json
from gridq.graph.source import join_path, load_graph
from gridq.graph.types import ANY, Type, parse_type
from gridq.protocol.models import Effect, Json

LIFECYCLES = ("Active", "Draft", "Deprecated", "Tombstone")

_IMPLEMENTATION = re.compile(r"[a-z][a-z0-9_]*:\S+")
_PYTHON = re.compile(r"python:[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_PREFIX = re.compile(r"[0-9a-f]{8,}")


@dataclass(frozen=True, slots=True)
class StageSpec:
    """One stage of the catalogue; `make_stage_spec` and `StageSpec.from_json` compute its ids.

    `implementation` names the code that runs it: `builtin:text_template`, `python:pkg.mod:function`,
    `llm:chat`. `config` holds defaults for each node's config. `timeout` is in seconds; None means
    GRIDQ_STAGE_TIMEOUT. `options` names what its code reads of the config: name → whether it needs it. Other
    keys may be part of the input.
    """

    id: str
    signature_id: str
    name: str
    implementation: str
    input: Type = ANY
    output: Type = ANY
    effects: tuple[Effect, ...] = (effect_rules.UNKNOWN,)
    description: str = ""
    config: Mapping[str, Json] | None = None
    lifecycle: str = "Active"
    examples: tuple[Json, ...] = ()
    tags: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    timeout: float | None = None
    options: Mapping[str, bool] = field(default_factory=dict, compare=False)
    has_parameters: bool = field(default=False, compare=False)

    @property
    def is_active(self) -> bool:
        return self.lifecycle == "Active"

    def merge_config(self, config: Mapping[str, Json] | None) -> dict[str, Json] | None:
        """Return the stage's config overwritten by a node's `config`; None if neither exists."""
        if not self.config:
            return None if config is None else dict(config)
        return {**self.config, **(config or {})}

    def resolve_effects(self, config: Mapping[str, Json] | None) -> tuple[Effect, ...]:
        """Return the stage's effects in a node with `config`."""
        if not self.has_parameters:
            return self.effects
        return effect_rules.fill_parameters(self.effects, self.merge_config(config) or {})

    def to_json(self) -> dict[str, Json]:
        """Return the stage as a stage file describes it, with its id."""
        record: dict[str, Json] = {
            "id": self.id,
            "name": self.name,
            "description": self.description,
            "input": self.input.to_json(),
            "output": self.output.to_json(),
            "effects": [effect_rules.to_json(effect) for effect in self.effects],
            "implementation": self.implementation,
            "lifecycle": self.lifecycle,
        }
        optional = {
            "config": None if self.config is None else dict(self.config),
            "examples": list(self.examples),
            "tags": list(self.tags),
            "aliases": list(self.aliases),
            "timeout": self.timeout,
            "options": dict(self.options),
        }
        return record | {key: value for key, value in optional.items() if value not in (None, [], {})}

    @staticmethod
    def from_json(data: Json, path: str = "", source: str | None = None) -> StageSpec:
        """Parse the content of a stage file.

        `source` is the Python source that the id of a `python:` implementation covers. Raises MissingField or
        InvalidField with `path` and the key. Unknown keys are ignored, unless they look like a misspelt key.
        """
        if not isinstance(data, dict):
            raise InvalidField(
                "A stage must be an object", {"path": path, "expected": '{"name": …, "implementation": …}'}
            )
        for key in data:
            near = (
                [] if key in _KEYS or key.startswith("_") else difflib.get_close_matches(key, _KEYS, 1, 0.8)
            )
            if near and near[0] not in data:
                raise InvalidField(
                    f"A stage has no key {quote(key)}",
                    {"path": join_path(path, key), "expected": ", ".join(_KEYS), "fix": f"use {near[0]!r}"},
                )
        for key in _REQUIRED:
            if key not in data:
                raise MissingField(
                    f"The stage has no {key!r}",
                    {"path": join_path(path, key), "expected": _KEYS[key][1], "fix": f"add {key!r}"},
                )
        for key, (valid, expected) in _KEYS.items():
            if data.get(key) is None and key not in _REQUIRED:
                continue
            if not valid(data[key]):
                raise InvalidField(
                    f"The stage's {key} is invalid: {quote(data[key])}",
                    {"path": join_path(path, key), "expected": expected},
                )
        return make_stage_spec(
            data["name"],
            data["implementation"],
            id=data.get("id"),
            source=source,
            effects=effect_rules.parse_effects(data.get("effects"), join_path(path, "effects")),
            input=parse_type(data["input"], join_path(path, "input")),
            output=parse_type(data["output"], join_path(path, "output")),
            description=data.get("description") or "",
            config=data.get("config"),
            lifecycle=_parse_lifecycle(data.get("lifecycle")) or "Active",
            examples=tuple(data.get("examples") or ()),
            tags=tuple(data.get("tags") or ()),
            aliases=tuple(data.get("aliases") or ()),
            timeout=data.get("timeout"),
            options=data.get("options") or {},
        )


def hash_implementation(implementation: str, source: str | None = None) -> str:
    """Return the hash of an implementation's name, or for Python of `module:qualname` and its source."""
    if implementation.startswith("python:") and source is not None:
        return hash_json({"qualname": implementation.removeprefix("python:"), "source": source})
    return hashlib.sha256(implementation.encode()).hexdigest()


def make_stage_spec(
    name: str,
    implementation: str,
    *,
    id: str | None = None,
    source: str | None = None,
    effects: Iterable[Effect] = (),
    **fields: Any,
) -> StageSpec:
    """Return a StageSpec with computed ids; without effects it has Unknown."""
    distinct = effect_rules.remove_duplicates(effects) or (effect_rules.UNKNOWN,)
    draft = StageSpec(
        id="", signature_id="", name=name, implementation=implementation, effects=distinct, **fields,
        has_parameters=effect_rules.have_parameters(distinct),
    )  # fmt: skip
    signature: dict[str, Json] = {
        "name": name,
        "input": draft.input.to_json(),
        "output": draft.output.to_json(),
        "effects": sorted(
            (effect_rules.to_json(effect) for effect in distinct), key=lambda e: json.dumps(e, sort_keys=True)
        ),
    }
    full = signature | {"implementation_hash": hash_implementation(implementation, source)}
    return replace(draft, id=id or hash_json(full), signature_id=hash_json(signature))


def _is_text(value: Json) -> bool:
    return isinstance(value, str) and bool(value)


def _is_text_list(value: Json) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


_KEYS: dict[str, tuple[Callable[[Json], bool], str]] = {
    "id": (_is_text, "text"),
    "name": (_is_text, "text"),
    "description": (lambda v: isinstance(v, str), "text"),
    "input": (lambda v: True, "a type"),
    "output": (lambda v: True, "a type"),
    "effects": (lambda v: True, "an array of effects"),
    "implementation": (
        lambda v: (
            isinstance(v, str)
            and bool((_PYTHON if v.startswith("python:") else _IMPLEMENTATION).fullmatch(v))
        ),
        "'builtin:NAME', 'python:package.module:function' or 'KIND:NAME'",
    ),
    "config": (lambda v: isinstance(v, dict), "an object"),
    "lifecycle": (lambda v: _parse_lifecycle(v) in LIFECYCLES, "one of " + ", ".join(LIFECYCLES)),
    "examples": (lambda v: isinstance(v, list), "an array"),
    "tags": (_is_text_list, "an array of texts"),
    "aliases": (_is_text_list, "an array of texts"),
    "timeout": (
        lambda v: isinstance(v, int | float) and not isinstance(v, bool) and v > 0,
        "seconds above 0",
    ),
    "options": (
        lambda v: isinstance(v, dict) and all(isinstance(needed, bool) for needed in v.values()),
        "an object of booleans: whether the stage needs the option",
    ),
}
_REQUIRED = ("name", "input", "output", "implementation")


def _parse_lifecycle(value: Json) -> str | None:
    # Other runtimes of the format write {"Deprecated": {"successor_id": …}}.
    if isinstance(value, dict) and len(value) == 1:
        value = next(iter(value))
    return value if isinstance(value, str) else None


class Catalogue:
    """Stages by id, signature, name and alias; immutable."""

    def __init__(self, specs: Iterable[StageSpec] = ()) -> None:
        """Raise ConfigError if two different stages have the same id."""
        self._by_id: dict[str, StageSpec] = {}
        self._by_signature: dict[str, list[StageSpec]] = {}
        self._by_name: dict[str, list[StageSpec]] = {}
        self._by_alias: dict[str, list[StageSpec]] = {}
        self._options: dict[str, dict[str, bool]] = {}
        """Implementation → its options, as any of its stages states them."""
        for spec in specs:
            if spec.options:
                self._options.setdefault(spec.implementation, dict(spec.options))
            known = self._by_id.get(spec.id)
            if known is not None:
                if known == spec:
                    continue
                raise ConfigError(
                    f"The stages {quote(known.name)} and {quote(spec.name)} have the same id",
                    {
                        "path": spec.id,
                        "expected": "one id per stage",
                        "fix": "give one of them another name or id",
                    },
                )
            self._by_id[spec.id] = spec
            self._by_signature.setdefault(spec.signature_id, []).append(spec)
            self._by_name.setdefault(spec.name, []).append(spec)
            for alias in spec.aliases:
                self._by_alias.setdefault(alias, []).append(spec)
        self._prefixes = sorted({*self._by_id, *self._by_signature})
        self._resolved: dict[tuple[str, str], StageSpec] = {}

    def find_options(self, spec: StageSpec) -> dict[str, bool]:
        """Return the options of a stage, name → whether the stage needs it: its own, those of its
        implementation, its defaults, and the fields of its input record.
        """
        record = spec.input.fields if spec.input.kind in ("Record", "RecordWith") else {}
        known = dict.fromkeys((*record, *(spec.config or {})), False)
        return known | self._options.get(spec.implementation, {}) | dict(spec.options)

    @property
    def specs(self) -> tuple[StageSpec, ...]:
        return tuple(self._by_id.values())

    def __len__(self) -> int:
        return len(self._by_id)

    def extend(self, specs: Iterable[StageSpec]) -> Catalogue:
        """Return a new catalogue with these stages and `specs`."""
        return Catalogue((*self.specs, *specs))

    def resolve(self, ref: str, pinning: str = "signature", path: str = "") -> StageSpec:
        """Return the stage for `ref`: an id, a unique hex prefix (8+ digits), a name or an alias.

        Ids are stage ids and signature ids. With pinning `signature`, the result is the Active stage with the
        signature of the one found. With `both`, it is the stage found, and `ref` must be its id or a prefix
        of it. Raises UnknownStage or AmbiguousStage, with candidates.
        """
        key = (ref, pinning)
        spec = self._resolved.get(key)
        if spec is None:
            spec = self._resolved[key] = self._find(ref, pinning, path)
        return spec

    def _find(self, ref: str, pinning: str, path: str) -> StageSpec:
        found = self._match(ref, pinning)
        alive = [spec for spec in found if spec.lifecycle != "Tombstone"]
        if not alive:
            raise self._make_unknown_error(ref, path, bool(found), pinning)
        if pinning == "both":
            return self._require_one(alive, ref, path)
        active = [spec for spec in alive if spec.is_active]
        if not active:
            # A deprecated stage or a draft is replaced by the Active one with its signature, if there is one.
            active = [s for spec in alive for s in self._by_signature[spec.signature_id] if s.is_active]
        return self._require_one(list({spec.id: spec for spec in active or alive}.values()), ref, path)

    def _match(self, ref: str, pinning: str) -> list[StageSpec]:
        if ref in self._by_id:
            return [self._by_id[ref]]
        if ref in self._by_signature and pinning != "both":
            return self._by_signature[ref]
        if _PREFIX.fullmatch(ref):
            hits: dict[str, StageSpec] = {}
            for full in self._prefixes[bisect.bisect_left(self._prefixes, ref) :]:
                if not full.startswith(ref):
                    break
                if full in self._by_id:
                    hits[full] = self._by_id[full]
                if full in self._by_signature and pinning != "both":
                    hits |= {spec.id: spec for spec in self._by_signature[full]}
            if hits:
                return list(hits.values())
        if pinning == "both":
            return []
        return self._by_name.get(ref) or self._by_alias.get(ref) or []

    def _require_one(self, specs: list[StageSpec], ref: str, path: str) -> StageSpec:
        if len(specs) == 1:
            return specs[0]
        candidates = [f"{spec.name} ({spec.id})" for spec in specs[:5]]
        raise AmbiguousStage(
            f"{quote(ref)} matches {len(specs)} stages: " + ", ".join(candidates),
            {
                "path": path,
                "stage": ref,
                "candidates": candidates,
                "expected": "a reference to one stage",
                "fix": f"use the id {specs[0].id}",
            },
        )

    def _make_unknown_error(self, ref: str, path: str, is_withdrawn: bool, pinning: str) -> UnknownStage:
        words = {**self._by_alias, **self._by_name}
        lower: dict[str, StageSpec] = {word.lower(): specs[0] for word, specs in words.items()}
        near = [lower[word] for word in difflib.get_close_matches(ref.lower(), lower, 3, 0.5)]
        alike = [full for full in self._prefixes if full in self._by_id and full[:4] == ref[:4]]
        near += [self._by_id[full] for full in alike[:3]]
        candidates = list(dict.fromkeys(f"{spec.name} ({spec.id[:12]})" for spec in near))[:5]
        details: dict[str, Json] = {
            "path": path,
            "stage": ref,
            "candidates": candidates,
            "expected": "a stage's id, a unique prefix of it (8 digits or more), or its name",
        }
        if is_withdrawn or not self._by_id:
            withdrawn = "the stage was withdrawn (Tombstone)"
            details["reason"] = withdrawn if is_withdrawn else "the catalogue is empty"
        if pinning == "both" and (ref in words or ref in self._by_signature):
            spec = (words.get(ref) or self._by_signature[ref])[0]
            details["expected"] = "with pinning both: a stage's id"
            details["fix"] = f"use the id {spec.id}, or remove pinning"
        elif near:
            names = " or ".join(dict.fromkeys(repr(spec.name) for spec in near[:3]))
            details["fix"] = f"use {names}; for your own stages set GRIDQ_STAGES or GRIDQ_STAGES_DIR"
        elif not is_withdrawn:
            details["fix"] = "correct the name; for your own stages set GRIDQ_STAGES or GRIDQ_STAGES_DIR"
        return UnknownStage(f"Unknown stage {quote(ref)}", details)


def load_directory(path: Path) -> list[StageSpec]:
    """Return the stages in every `*.json` file in `path`, sorted by file; a file holds one stage or an array.

    Raises ConfigError with the file and the key at fault.
    """
    if not path.is_dir():
        raise ConfigError(
            "The stage folder does not exist", {"path": str(path), "expected": "a folder of *.json files"}
        )
    specs: list[StageSpec] = []
    for file in sorted(path.glob("*.json")):
        try:
            data = load_graph(file.read_bytes(), 400)
            for i, item in enumerate(data if isinstance(data, list) else [data]):
                specs.append(StageSpec.from_json(item, f"[{i}]" if isinstance(data, list) else ""))
        except InvalidJson as exc:
            what = exc.message.removeprefix("The graph ")
            wanted = {"expected": '{"name": …, "implementation": …}', "fix": "correct it, or remove it"}
            where = f"{file}: {exc.path}" if exc.path else str(file)
            raise ConfigError(f"The stage file {file.name} {what}", {"path": where, **wanted}) from None
        except GraphError as exc:
            where = f"{file}: {exc.path}" if exc.path else str(file)
            raise ConfigError(
                f"The stage file {file.name} is invalid: {exc.message}", {**exc.details, "path": where}
            ) from None
        except OSError as exc:
            raise ConfigError(
                f"The stage file {file.name} cannot be read", {"path": str(file), "reason": str(exc)}
            ) from None
    return specs
