"""`gridq models` on a machine without a grid, at a hub on this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gridq import cli
from gridq.config.settings import settings
from tests.fakes.hub_server import HubServer, Repository
from tests.gguf_files import write_gguf
from workers.cli.models import format_progress
from workers.profiles.gpu.model_files.local_models import LocalModels
from workers.profiles.gpu.model_files.pulling import PullProgress


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    found = tmp_path / "home"
    found.mkdir()
    monkeypatch.setenv("GRIDQ_HOME", str(found))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    settings.cache_clear()
    cli.load_commands()
    return found


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    file = write_gguf(tmp_path / "m.gguf", elements=65_536)
    repositories = {"org/Tiny-GGUF": Repository({"Tiny-Q8_0.gguf": file})}
    with HubServer({**repositories, "org/Gated": Repository({"G-Q4_K_M.gguf": file}, gated=True)}) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


def gridq(*arguments: str) -> tuple[int, str, str]:
    done = CliRunner().invoke(cli.app, ["models", *arguments], env={"COLUMNS": "200"})
    return done.exit_code, done.stdout, done.stderr


def gridq_json(*arguments: str) -> Any:
    code, out, err = gridq(*arguments, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def test_a_model_is_searched_pulled_shown_and_removed(home: Path) -> None:
    assert [each["reference"] for each in gridq_json("search", "tiny")] == ["hf:org/Tiny-GGUF"]
    code, out, err = gridq("pull", "hf:org/Tiny-GGUF", "--context", "512", "--family", "t", "--no-any")
    assert code == 0
    assert "llm:tiny" in out
    assert "the nearest is Q8_0" in err
    [model] = gridq_json("list")["models"]
    assert (model["name"], model["context"], model["families"], model["any"]) == ("tiny", 512, ["t"], False)
    shown = gridq_json("show", "tiny")
    assert shown["memory_mb"] > 0
    assert (shown["architecture"], shown["loaded"]) == ("llama", False)
    assert "tiny" in gridq("show", "tiny")[1]
    assert gridq_json("rm", "tiny") == {"name": "tiny", "freed_bytes": shown["size"]}
    assert LocalModels(home).read() == []
    assert gridq("rm", "tiny")[0] == 2


def test_everything_that_the_seats_file_names_is_prefetched(home: Path) -> None:
    table = 'name = "mine"\nfile = "hf:org/Tiny-GGUF"\ncontext = 300\n'
    (home / "seats.toml").write_text(f"[[gpu.models]]\n{table}")
    assert [each["name"] for each in gridq_json("prefetch")] == ["mine"]
    assert gridq_json("prefetch") == []
    assert LocalModels(home).get("mine").context == 300
    assert gridq_json("pull", "mine")["name"] == "mine"


def test_the_limit_of_the_seats_file_holds_for_a_pull_by_hand(home: Path) -> None:
    (home / "seats.toml").write_text("[gpu]\ncache_limit_gb = 0.0001\n")
    code, out, _ = gridq("pull", "hf:org/Tiny-GGUF", "--json")
    assert code == 2
    assert json.loads(out)["error"]["code"] == "model.too_large"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("pull", "hf:nope"), "model.reference"),
        (("pull", "nobody"), "model.not_found"),
        (("pull", "hf:org/Gated"), "model.gated"),
        (("show", "nobody"), "model.not_found"),
    ],
)
def test_a_mistake_is_one_line_with_a_fix(arguments: tuple[str, ...], code: str) -> None:
    exit_code, out, err = gridq(*arguments, "--json")
    assert exit_code == 2
    error = json.loads(out)["error"]
    assert error["code"] == code
    assert {"fix", "expected"} & error["details"].keys()
    assert [line for line in err.splitlines() if line.startswith("error: ")] == err.strip().splitlines()


def test_progress_is_one_line() -> None:
    progress = PullProgress("m", "hf:o/r", "downloading", 1_200_000_000, 5_000_000_000, 200.0)
    assert format_progress(progress) == "m: downloading 1.2 GB of 5.0 GB, 24%, 3 min left"
    assert format_progress(PullProgress("m", "hf:o/r", "downloading", 1, 100)).endswith("1 B of 100 B, 1%")
    assert format_progress(PullProgress("m", "hf:o/r")) == "m: resolving"
