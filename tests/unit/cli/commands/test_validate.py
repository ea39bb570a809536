"""`gridq validate`, without a server."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gridq.cli import app
from gridq.config.settings import settings
from tests.fakes.bench_profile import BENCH
from workers.demo import GRAPH

EXAMPLES = Path(__file__).parents[4] / "examples"


@pytest.fixture(autouse=True)
def _no_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> object:
    monkeypatch.setenv("GRIDQ_BROKER_URL", "redis://127.0.0.1:1/0")
    monkeypatch.setenv("GRIDQ_HOME", str(tmp_path))
    monkeypatch.setenv("GRIDQ_PROFILES", f"{BENCH},gpu,llm")
    settings.cache_clear()
    yield
    settings.cache_clear()


def write(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def test_a_valid_graph_lists_what_it_needs() -> None:
    done = CliRunner().invoke(app, ["validate", str(GRAPH)])
    assert (done.exit_code, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("valid        A morning briefing")
    assert [line.split() for line in lines if "llm:" in line] == [["llm:smollm2-135m-instruct", "3", "steps"]]
    assert max(map(len, lines)) <= 80


def test_json_output_lists_queues_and_effects() -> None:
    done = CliRunner().invoke(app, ["validate", str(GRAPH), "--json"])
    report = json.loads(done.stdout)
    assert len(report["composition"]) == 64
    assert report["queues"].keys() == {"gridq:pure", "llm:smollm2-135m-instruct"}
    assert report["steps"] == sum(report["queues"].values())
    assert "Llm(model=smollm2-135m-instruct)" in report["effects"]


def test_all_fallbacks_are_shown(tmp_path: Path) -> None:
    def ask(*models: str) -> dict[str, Any]:
        return {"op": "Stage", "id": "llm_complete", "config": {"model": list(models), "prompt": "x"}}

    root = {
        "op": "Sequential",
        "stages": [ask("opus", "gpt-5", "any"), ask("opus"), ask("opus", "gpt-5", "any")],
    }
    graph = write(tmp_path / "g.json", json.dumps({"root": root}))
    shown = CliRunner().invoke(app, ["validate", graph]).stdout.splitlines()
    assert [re.split(r"  +", line)[1:] for line in shown[-2:]] == [
        ["llm:opus", "1 step"],
        ["llm:opus, else llm:gpt-5, else llm:any", "2 steps"],
    ]
    report = json.loads(CliRunner().invoke(app, ["validate", graph, "--json"]).stdout)
    assert report["queues"] == {"llm:opus": 3}
    assert report["chains"] == [
        {"queues": ["llm:opus"], "steps": 1},
        {"queues": ["llm:opus", "llm:gpt-5", "llm:any"], "steps": 2},
    ]


def test_the_briefing_example_is_the_demos_graph() -> None:
    assert (EXAMPLES / "briefing.json").resolve() == GRAPH.resolve()


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        ("{", "graph.not_json: The graph is not JSON"),
        ('{"root": {"op": "Stge", "id": "join"}}', "g.json: root.op); expected one of Stage"),
        ('{"root": {"op": "Retry", "stage": {"op": "Stage", "id": "join"}}}', "g.json: root.max_attempts)"),
        ('{"root": {"op": "Stage", "id": "text_templat"}}', "Fix: use 'text_template'"),
        (
            '{"root": {"op": "Fanout", "source": {"op": "Const", "value": 1}, '
            '"targets": [{"op": "Stage", "id": "join"}]}}',
            "graph.type_mismatch",
        ),
    ],
)
def test_an_invalid_graph_is_a_one_line_error_and_exits_with_3(
    tmp_path: Path, graph: str, message: str
) -> None:
    done = CliRunner().invoke(app, ["validate", write(tmp_path / "g.json", graph)])
    assert (done.exit_code, done.stdout) == (3, "")
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_stages_option_adds_the_stages_of_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "stages"
    folder.mkdir()
    spec = {
        "name": "twice",
        "input": {"kind": "Any"},
        "output": {"kind": "Any"},
        "effects": [{"effect": "Bench", "slug": "rare"}],
        "implementation": "bench:echo",
    }
    write(folder / "twice.json", json.dumps(spec))
    graph = write(tmp_path / "g.json", '{"root": {"op": "Stage", "id": "twice"}}')
    assert CliRunner().invoke(app, ["validate", graph]).exit_code == 3
    done = CliRunner().invoke(app, ["validate", graph, "--stages", str(folder), "--json"])
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["queues"] == {"bench:rare": 1}


def test_an_invalid_stage_file_is_named_with_the_fix(tmp_path: Path) -> None:
    folder = tmp_path / "stages"
    folder.mkdir()
    write(folder / "twice.json", '{"name": "twice",')
    graph = write(tmp_path / "g.json", '{"root": {"op": "Stage", "id": "join"}}')
    done = CliRunner().invoke(app, ["validate", graph, "--stages", str(folder)])
    assert done.exit_code == 2
    assert done.stderr.startswith("error: config.invalid: The stage file twice.json is not JSON: ")
    assert "twice.json: line 1, column 18)" in done.stderr
    assert "graph" not in done.stderr.replace(str(tmp_path), "")
    assert "Fix: correct it" in done.stderr


def test_a_reference_to_another_file_is_refused_with_the_fix(tmp_path: Path) -> None:
    text = '{"root": {"op": "Sequential", "stages": [{"$ref": "other.json#/root"}]}}'
    done = CliRunner().invoke(app, ["validate", write(tmp_path / "g.json", text)])
    assert done.exit_code == 3
    assert "$ref is not supported: 'other.json#/root' is not resolved" in done.stderr
    assert 'g.json: root.stages[0]["$ref"])' in done.stderr
    assert "Fix: put the node here" in done.stderr
