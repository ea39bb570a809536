"""Log lines of the grid's own programs."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from gridq.config.settings import Settings
from gridq.telemetry import logs, narration
from gridq.telemetry.narration import log_context, narrate

ADMITTED = {"job": "3f2a9c01-77", "name": "briefing", "agent": "default", "stages": 7}
TOLD = "Job 3f2a9c01 (briefing) was admitted for agent default: 7 stages."


@pytest.fixture
def loggers() -> Iterator[None]:
    """The loggers are left as they were."""
    root = logging.getLogger()
    names = [narration.log.name, *logs.NOISY]
    before = root.handlers[:], root.level, {name: logging.getLogger(name).level for name in names}
    show, raising = warnings.showwarning, logging.raiseExceptions
    root.handlers[:] = []
    yield
    for handler in root.handlers:
        handler.close()
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    for name, level in before[2].items():
        logging.getLogger(name).setLevel(level)
    logging.captureWarnings(False)
    warnings.showwarning, logging.raiseExceptions = show, raising


def lines(folder: Path, level: int | str | None = None, **settings: object) -> list[str]:
    """Write a few log lines at `level` with these settings, and return them."""
    path = folder / "a.log"
    logs.setup(level, file=str(path), config=Settings(**settings))
    with log_context(job="3f2a9c01-77", stage="draft", attempt=2, worker="cpu@mac"):
        logging.getLogger("gridq.execution.attempt").debug("a detail")
        logging.getLogger("gridq.execution.attempt").warning(
            "the pieces wait for the server: %s", "it is away"
        )
        narrate("job admitted", **ADMITTED)
    try:
        raise ValueError("canary")
    except ValueError:
        logging.getLogger("celery.worker").exception("a fault: %s", "of its own")
    return path.read_text().splitlines()


def test_text_lines_have_level_logger_and_fields(loggers: None, tmp_path: Path) -> None:
    first, *rest = lines(tmp_path)
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z ", first)
    assert first.split("Z ", 1)[1] == (
        "[warning] the pieces wait for the server: it is away [gridq.execution.attempt] "
        "job=3f2a9c01-77 stage=draft attempt=2 worker=cpu@mac"
    )
    assert "[error] a fault: of its own [celery.worker]" in rest[0]
    assert rest[-1].strip() == "ValueError"
    assert "canary" not in "\n".join(rest)


def test_json_lines_have_level_logger_and_fields(loggers: None, tmp_path: Path) -> None:
    read = [json.loads(line) for line in lines(tmp_path, "DEBUG", log="json")]
    assert [line["event"] for line in read] == [
        "a detail", "the pieces wait for the server: it is away", "job admitted", "a fault: of its own",
    ]  # fmt: skip
    assert {name: read[1][name] for name in ("level", "logger", "job", "stage", "attempt", "worker")} == {
        "level": "warning", "logger": "gridq.execution.attempt", "job": "3f2a9c01-77", "stage": "draft",
        "attempt": 2, "worker": "cpu@mac",
    }  # fmt: skip
    assert {**read[2], **ADMITTED} == read[2]
    assert read[3]["exception"].endswith("ValueError")
    assert "job" not in read[3]


def test_narration_ignores_the_log_level(loggers: None, tmp_path: Path) -> None:
    text = "\n".join(lines(tmp_path, "ERROR", narrate=True))
    assert re.search(rf"^\S+Z {re.escape(TOLD)}$", text, re.MULTILINE)
    assert "the pieces wait" not in text, "only what happens to jobs and seats goes before the level"
    assert "a fault: of its own" in text


def test_json_lines_have_the_sentence(loggers: None, tmp_path: Path) -> None:
    read = [json.loads(line) for line in lines(tmp_path, log="json", narrate=True)]
    assert [line.get("sentence") for line in read] == [None, TOLD, None]


def test_the_level_is_the_callers_else_the_settings(loggers: None, tmp_path: Path) -> None:
    assert len(lines(tmp_path, log_level="ERROR")) < len(lines(tmp_path, "DEBUG", log_level="ERROR"))
    assert logging.getLogger("httpx").level == logging.WARNING


def test_repeated_setup_writes_each_line_once(loggers: None, tmp_path: Path) -> None:
    logs.setup(file=str(tmp_path / "other.log"), config=Settings())
    assert len([line for line in lines(tmp_path) if "the pieces wait" in line]) == 1


def test_secrets_are_hidden_in_any_line(loggers: None, tmp_path: Path) -> None:
    config = {"broker_url": "redis://:hush-hush-hush@h:1/0", "log": "json"}
    lines(tmp_path, **config)
    logging.getLogger("x").warning("at hush-hush-hush", extra={"gridq": {"prompt": "canary", "n": 1}})
    last = json.loads((tmp_path / "a.log").read_text().splitlines()[-1])
    assert (last["event"], last["prompt"], last["n"]) == ("at [hidden]", "[hidden]", 1)


def test_an_agents_program_keeps_its_own_logging() -> None:
    code = """
import logging, sys
logging.basicConfig(level=logging.INFO, format="own %(message)s", stream=sys.stdout)
import gridq.app, gridq.client
from celery import Celery, signals
assert "structlog" not in sys.modules
signals.celeryd_init.send(sender="me", instance=type("W", (), {"app": Celery("agent")})())
assert not signals.setup_logging.receivers
gridq.telemetry.narration.narrate("job admitted", job="j")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "own job admitted\n"), done.stderr
