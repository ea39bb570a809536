"""Events, their sentences, and the fields that lines carry."""

from __future__ import annotations

import ast
import logging
import threading
from pathlib import Path

import pytest

from gridq.telemetry import narration
from gridq.telemetry.narration import (
    EVENTS,
    bound_fields,
    enclosing_name,
    log_context,
    narrate,
    to_sentence,
    update_log_context,
)

ROOT = Path(__file__).parents[3]
JOB = {"job": "3f2a9c01-7777", "name": "briefing"}
FULL = {
    **JOB, "stage": "root.body.bindings.draft", "runs": "llm_chat",
    "workers": 1, "agent": "default", "stages": 7, "worker": "cpu@mac", "attempt": 1,
    "wait_ms": 12.2, "run_ms": 812.4, "tokens_out": 40, "code": "seat.unavailable", "seconds": 60.0,
    "concurrency": 2, "queues": ["llm:any", "gpu:cpu"], "after": "again", "model": "echo",
}  # fmt: skip


@pytest.mark.parametrize(
    ("event", "changed", "sentence"),
    [
        ("job admitted", {}, "Job 3f2a9c01 (briefing) was admitted for agent default: 7 stages."),
        ("job admitted", {"stages": 1, "name": ""}, "Job 3f2a9c01 was admitted for agent default: 1 stage."),
        ("stage claimed", {}, "cpu@mac took briefing/draft/llm_chat (attempt 1) after 12 ms."),
        (
            "stage claimed",
            {"wait_ms": 61_000.0},
            "cpu@mac took briefing/draft/llm_chat (attempt 1) after 61.0 s.",
        ),
        ("stage done", {}, "briefing/draft/llm_chat answered in 812 ms, 40 tokens."),
        (
            "stage done",
            {"tokens_out": 0, "name": "", "stage": "root"},
            "3f2a9c01/llm_chat answered in 812 ms.",
        ),
        (
            "stage done",
            {"stage": "root.branches.a.stages[1]"},
            "briefing/a/llm_chat answered in 812 ms, 40 tokens.",
        ),
        ("workers died", {}, "A worker died."),
        ("workers died", {"workers": 2}, "2 workers died."),
        (
            "stage lost",
            {"stage": "root.branches.a.stages[1]", "after": "again"},
            "briefing/a (attempt 1) was lost with cpu@mac; it waits for another seat.",
        ),
        (
            "stage lost",
            {"stage": "root", "after": "plain"},
            "briefing/root (attempt 1) was lost with cpu@mac; its job failed.",
        ),
        (
            "stage lost",
            {"stage": "root", "after": "quarantined"},
            "briefing/root (attempt 1) was lost with cpu@mac; it is in quarantine: see gridq quarantine.",
        ),
        ("seat live", {}, "cpu@mac is live with 2 slots: llm:any, gpu:cpu."),
    ],
)
def test_events_become_sentences(event: str, changed: dict[str, object], sentence: str) -> None:
    assert to_sentence(event, {**FULL, **changed}) == sentence


@pytest.mark.parametrize("event", EVENTS)
def test_every_event_is_a_whole_sentence(event: str) -> None:
    sentence = to_sentence(event, FULL)
    assert sentence is not None
    assert sentence.endswith(".")
    assert "None" not in sentence
    assert to_sentence(event, {}) is None, "what lacks its fields is a plain line"


def test_other_events_have_no_sentence() -> None:
    assert to_sentence("the answer is not written yet", FULL) is None


def _find_narrated_events() -> dict[str, str]:
    """Return every event that the code narrates, with the file that does."""
    found = {}
    for package in ("gridq", "workers"):
        for path in (ROOT / package).rglob("*.py"):
            spelled = ("narrate",) if path.name == "narration.py" else ("narration.narrate",)
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and ast.unparse(node.func) in spelled:
                    assert isinstance(node.args[0], ast.Constant), path
                    found[node.args[0].value] = path.name
    return found


def test_every_event_is_narrated_and_no_other() -> None:
    assert _find_narrated_events().keys() == EVENTS.keys()


def test_every_event_is_documented() -> None:
    text = (ROOT / "docs" / "reference" / "log-events.md").read_text()
    for event in EVENTS:
        assert f"| `{event}` |" in text, event


def test_bound_fields_nest_and_end() -> None:
    with log_context(job="j", worker="w"):
        with log_context(stage="a"):
            update_log_context(stage="b")
            assert bound_fields() == {"job": "j", "worker": "w", "stage": "b"}
        assert bound_fields() == {"job": "j", "worker": "w"}
    assert bound_fields() == {}


def test_each_thread_has_its_own_fields() -> None:
    fields = []
    with log_context(job="j"):
        thread = threading.Thread(target=lambda: fields.append(dict(bound_fields())))
        thread.start()
        thread.join()
    assert fields == [{}]


def test_without_a_listener_no_record_is_made(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger=narration.log.name):
        narrate("job admitted", **FULL)
    assert caplog.records == []
    with caplog.at_level(logging.INFO, logger=narration.log.name):
        narrate("job admitted", agent="a")
    assert [(record.getMessage(), record.gridq) for record in caplog.records] == [
        ("job admitted", {"agent": "a"})
    ]


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("root", ""),
        ("root.stages[2].target", ""),
        ("root.bindings.a.stages[0]", "a"),
        ("root.body.branches.summary.stages[1].stage", "summary"),
        ("root.bindings.a.branches.b", "b"),
    ],
)
def test_the_enclosing_name_is_the_nearest_one(path: str, place: str) -> None:
    assert enclosing_name(path) == place
