"""Rules of the project that no linter checks."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gridq import errors
from gridq.errors import GridError

ROOT = Path(__file__).parents[2]
TEXT = {
    ".py",
    ".lua",
    ".md",
    ".toml",
    ".cfg",
    ".ini",
    ".json",
    ".yml",
    ".yaml",
    ".conf",
    ".service",
    ".sh",
    ".html",
    ".js",
    "",
}


def _files() -> list[Path]:
    """Return every file of the project that git knows or may add."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("not a git checkout")
    return [path for name in sorted(set(done.stdout.split("\0"))) if name and (path := ROOT / name).is_file()]


def _errors() -> list[type[GridError]]:
    found = [getattr(errors, name) for name in errors.__all__]
    return [cls for cls in found if isinstance(cls, type)]


def test_no_file_has_a_vague_name() -> None:
    vague = {"util", "utils", "common", "helper", "helpers", "misc"}
    assert [
        str(p) for p in _files() if vague & set(re.split(r"[/._-]", str(p.relative_to(ROOT)).lower()))
    ] == []


def test_nothing_names_a_machine_or_a_registry() -> None:
    # Written in pieces, so that this file passes its own test.
    paths = [
        "/" + "work/(?:main|shared|\\.)",
        "/" + "root/",
        "/" + "Users/\\w",
        "/" + "home/(?!me\\b|you\\b)\\w",
    ]
    hosts = ["py" + "pi\\.org", "python" + "hosted\\.org", "registry\\." + "npmjs", "arti" + "factory"]
    wrong = re.compile("|".join(paths + hosts))
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}"
        for path in _files()
        if path.suffix in TEXT
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if wrong.search(line)
    ]
    assert found == []


def test_make_help_lists_every_target() -> None:
    text = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):(?!=)", text, re.MULTILINE))
    phony = set(re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)[1].split())  # type: ignore[index]
    listed = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    described = dict(re.findall(r"^make (\S+) +(.+)$", listed, re.MULTILINE))
    assert targets == phony == described.keys() >= {"help", "setup", "demo", "test", "bench", "check"}


def test_every_error_is_listed_once_in_order() -> None:
    assert errors.__all__ == sorted(errors.__all__)
    defined = {
        name for name, cls in vars(errors).items() if isinstance(cls, type) and issubclass(cls, GridError)
    }
    assert defined == {cls.__name__ for cls in _errors()}


def test_every_error_has_a_code_of_its_own() -> None:
    codes = [cls.code for cls in _errors()]
    assert len(codes) == len(set(codes)) > 30
    assert [code for code in codes if not re.fullmatch(r"[a-z]+(\.[a-z_]+)+", code)] == []


@pytest.mark.parametrize("cls", _errors(), ids=lambda cls: cls.__name__)
def test_every_error_survives_celerys_result_backend(cls: type[GridError]) -> None:
    from gridq.app import app

    sent = cls("what is wrong", {"path": "$.a", "fix": "do this", "stage": "s", "retry_at": 1.5})
    stored = json.loads(json.dumps(app.backend.prepare_exception(sent, "json")))
    got = app.backend.exception_to_python(stored)
    assert type(got) is cls
    assert (got.message, got.details, got.code, str(got)) == (sent.message, sent.details, cls.code, str(sent))
    record = errors.error_from_record(json.loads(sent.to_json()))
    assert type(record) is cls
    assert record.details == sent.details


def test_import_contracts_hold() -> None:
    # In a process of its own: it disables every logger that it finds.
    code = "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(cache_dir=None))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
