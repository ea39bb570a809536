"""Choose the file of a repository by its quantization, with all its parts if it is split.

A file's quantization stands at the end of its name (`…-Q4_K_M.gguf`), or names its folder. A split file has
parts named `…-00001-of-00003.gguf`, as llama.cpp's gguf-split writes them; an engine gets the first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from gridq.errors import ModelNotFound

DEFAULT = "Q4_K_M"

_LABEL = re.compile(
    r"(?:^|[-._/])((?:UD-)?(?:I?Q[1-8](?:_[A-Z0-9]+)*|TQ[12]_0|MXFP4(?:_MOE)?|NVFP4|BF16|F16|F32))(?=$|[-._/])",
    re.IGNORECASE,
)
_PART = re.compile(r"^(.*)-(\d{5})-of-(\d{5})\.gguf$", re.IGNORECASE)
_NO_MODELS = ("mmproj", "imatrix")
"""Words in the names of files that are no model by themselves."""

_SUFFIXES = ("_K_M", "_K_L", "_K_XL", "_K_S", "_1", "_0", "_NL", "_XS")
"""The order among quantizations of the same number of bits."""


@dataclass(frozen=True)
class Variant:
    """One model of a repository: its quantization (the file's name if it states none), its files in order."""

    label: str
    paths: tuple[str, ...]


def choose_variant(paths: Iterable[str], choice: str | None, repo: str) -> tuple[Variant, str]:
    """Return the variant that `choice` names, and a sentence if it is not the default that was asked for.

    `choice`: a quantization, the name of a file, or None for Q4_K_M or the nearest. Raises ModelNotFound if
    there is none, or a part of it is missing.
    """
    groups = _group_files(paths)
    if not groups:
        raise ModelNotFound(
            f"{repo} has no GGUF file",
            {"path": f"hf:{repo}", "fix": f"gridq models search {repo.partition('/')[2]}"},
        )
    found = [Variant(_find_label(name), files) for name, files in sorted(groups.items())]
    if choice is None:
        chosen = min(found, key=lambda variant: _measure_distance(variant.label))
        note = "" if chosen.label == DEFAULT else f"{repo} has no {DEFAULT}; the nearest is {chosen.label}"
    else:
        matching = [each for each in found if _matches(each, choice)]
        if not matching:
            labels = sorted({each.label for each in found}, key=_measure_distance)
            raise ModelNotFound(
                f"{repo} has no {choice!r}",
                {
                    "path": f"hf:{repo}:{choice}",
                    "expected": "one of " + ", ".join(labels),
                    "fix": f"use hf:{repo}:{labels[0]}",
                },
            )
        chosen, note = matching[0], ""
    _check_parts(chosen, repo)
    return chosen, note


def _group_files(paths: Iterable[str]) -> dict[str, tuple[str, ...]]:
    groups: dict[str, list[str]] = {}
    for path in sorted(paths):
        name = path.rpartition("/")[2].lower()
        if not name.endswith(".gguf") or any(word in name for word in _NO_MODELS):
            continue
        part = _PART.match(path)
        groups.setdefault(part[1] if part else path[: -len(".gguf")], []).append(path)
    return {name: tuple(files) for name, files in groups.items()}


def _find_label(name: str) -> str:
    """Return the quantization in a file's name without its ending; else the name without its folder."""
    labels = _LABEL.findall(name)
    return labels[-1].upper() if labels else name.rpartition("/")[2]


def _matches(variant: Variant, choice: str) -> bool:
    if choice.lower().endswith(".gguf"):
        names = {variant.paths[0], variant.paths[0].rpartition("/")[2]}
        return choice in names or choice in variant.paths
    return variant.label.lower() == choice.lower()


def _measure_distance(label: str) -> tuple[int, bool, int, int, str]:
    """Return how far a quantization is from the default, as a key to sort by. More bits come first."""
    digits = re.search(r"\d+", label)
    bits = int(digits[0]) if digits and _LABEL.fullmatch(label) else 64
    suffix = next((at for at, each in enumerate(_SUFFIXES) if label.endswith(each)), len(_SUFFIXES))
    return abs(bits - 4), bits < 4, suffix, len(label), label


def _check_parts(variant: Variant, repo: str) -> None:
    part = _PART.match(variant.paths[0])
    if part is None:
        return
    count = int(part[3])
    present = {int(match[2]) for match in map(_PART.match, variant.paths) if match}
    missing = sorted(set(range(1, count + 1)) - present)
    if missing:
        raise ModelNotFound(
            f"{variant.label} of {repo} is not complete",
            {
                "path": f"hf:{repo}:{variant.label}",
                "reason": f"{len(missing)} of {count} parts are missing, the first is number {missing[0]}",
                "fix": "choose another quantization",
            },
        )
