"""The docstring of every folder has its input, output and importers, and `__all__` its used modules."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRODUCT = ("gridq", "workers")
PUBLIC_API = {
    *("gridq", "gridq.client", "gridq.errors", "gridq.stages", "workers"),
    *("workers.profiles.gpu", "workers.profiles.llm"),
}
"""Packages whose `__init__.py` exports names instead of modules."""

MAX_FILES = 17
"""Modules side by side in one folder."""

FORM = re.compile(
    r"\A[A-Z][^\n]*(?:\n[^\n]+)*\.\n\n(?:.*\n\n)?In: .+\nOut: .+\nImported by: .+\.\Z", re.DOTALL
)


def _packages() -> list[str]:
    found = [path.parent for top in PRODUCT for path in (ROOT / top).rglob("__init__.py")]
    return sorted(".".join(folder.relative_to(ROOT).parts) for folder in found)


def _folder(package: str) -> Path:
    return ROOT.joinpath(*package.split("."))


def _docstring(package: str) -> str:
    return ast.get_docstring(ast.parse((_folder(package) / "__init__.py").read_text())) or ""


def _exports(package: str) -> list[str]:
    for node in ast.parse((_folder(package) / "__init__.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            exports: list[str] = ast.literal_eval(node.value)
            return exports
    return []


def _is_module(dotted: str) -> bool:
    path = ROOT.joinpath(*dotted.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def _imported(path: Path) -> Iterator[str]:
    """Yield the modules of the product that a file imports, anywhere."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names if name.name.split(".")[0] in PRODUCT)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in PRODUCT:
            for name in node.names:
                inner = f"{node.module}.{name.name}"
                yield inner if _is_module(inner) else node.module


@cache
def _importers() -> dict[str, set[tuple[str, str]]]:
    """Return for each package the pairs of one of its modules and an outside module that imports it."""
    found: dict[str, set[tuple[str, str]]] = defaultdict(set)
    packages = _packages()
    for top in PRODUCT:
        for path in (ROOT / top).rglob("*.py"):
            importer = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            for module in _imported(path):
                for package in packages:
                    if module.startswith(f"{package}.") and not f"{importer}.".startswith(f"{package}."):
                        found[package].add((module.removeprefix(f"{package}.").split(".")[0], importer))
    return found


def _describe(importer: str, package: str) -> str:
    """Return what a docstring calls an importer: a sibling of a nested folder, a folder or module of `gridq`,
    or `workers.` and one of `workers`.
    """
    parent = package.rpartition(".")[0]
    if "." in parent and importer.startswith(f"{parent}."):
        return importer.removeprefix(f"{parent}.").split(".")[0]
    top, *rest = importer.split(".")
    return (rest[0] if top == "gridq" else ".".join([top, *rest[:1]])) if rest else top


FOLDERS = sorted(set(_packages()) - PUBLIC_API)


@pytest.mark.parametrize("package", FOLDERS)
def test_a_folder_says_what_it_is(package: str) -> None:
    assert FORM.match(_docstring(package)), f"{package}: a title, then lines 'In:', 'Out:' and 'Imported by:'"


@pytest.mark.parametrize("package", FOLDERS)
def test_a_folder_says_who_imports_it(package: str) -> None:
    stated = " ".join(_docstring(package).rpartition("Imported by: ")[2].rstrip(".").split())
    actual = {_describe(importer, package) for _, importer in _importers()[package]}
    assert set(stated.split(", ")) == (actual or {"nobody"})


@pytest.mark.parametrize("package", FOLDERS)
def test_what_others_import_of_a_folder_is_what_it_exports(package: str) -> None:
    used = {module for module, _ in _importers()[package]}
    modules = {path.stem for path in _folder(package).glob("*.py")} | {
        path.parent.name for path in _folder(package).glob("*/__init__.py")
    }
    exports = _exports(package)
    assert exports == sorted(exports)
    assert used - set(exports) == set(), f"{package} does not export these"
    assert set(exports) - modules == set(), f"{package} exports what it has not"


@pytest.mark.parametrize("package", _packages())
def test_no_folder_is_crowded(package: str) -> None:
    files = [path for path in _folder(package).glob("*.py") if path.stem != "__init__"]
    assert len(files) <= MAX_FILES
