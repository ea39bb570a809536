"""Messages about a started grid, and about an unreachable server."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import pytest

from gridq.store.connection import connect
from gridq.store.keys import Keys
from workers.supervisor.embedded_server import find_free_port
from workers.supervisor.status import align_columns, format_grid, format_started, read_grid


def state(program: str, home: Path) -> dict[str, Any]:
    return {
        "program": program, "machine": "vm-1234", "home": str(home), "parts": [],
        "missing": ["gpu: No NVIDIA GPU"], "logs": str(home / "logs"), "pid": 7,
    }  # fmt: skip


def test_other_shells_are_told_a_home_that_is_not_the_default(tmp_path: Path) -> None:
    assert "in any other shell of this user" in format_started(state("grid", Path.home() / ".gridq"), 1.0)
    text = format_started(state("grid", tmp_path / "a home"), 1.0)
    assert f"in any other shell with GRIDQ_HOME='{tmp_path}/a home'" in text


def test_the_last_column_is_cut_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [["PART", "WHERE"], ["server", "a folder  " * 40 + "the end"]]
    monkeypatch.setattr(sys, "__stdout__", io.StringIO())  # no terminal, whoever runs the tests
    monkeypatch.delenv("COLUMNS", raising=False)
    assert align_columns(rows)[1].endswith("the end")
    monkeypatch.setenv("COLUMNS", "60")
    assert align_columns(rows)[1].endswith(" …")
    assert len(align_columns(rows)[1]) <= 60


def test_gridq_up_says_what_it_lends_without_a_table(tmp_path: Path) -> None:
    notice = "ollama: Ollama 0.13.5 already runs. To leave it out: …"
    text = format_started({**state("grid", tmp_path), "notices": [notice]}, 1.0)
    assert f"Lent       {notice}" in text.splitlines()


def test_gridq_worker_does_not_list_missing_seats(tmp_path: Path) -> None:
    assert "Not found  gpu: No NVIDIA GPU" in format_started(state("grid", tmp_path), 1.0)
    assert "Not found" not in format_started(state("worker", tmp_path), 1.0)


def test_an_unreachable_server_is_named_by_its_own_address() -> None:
    port = find_free_port()
    url = f"redis://:hidden@127.0.0.1:{port}/0"
    with connect(url, retry=False) as client:
        error = read_grid(client, Keys("t:"), url)["error"]
    assert f"redis://127.0.0.1:{port}/0" in error
    assert "hidden" not in error


def test_a_detached_grid_does_not_mention_ctrl_c(tmp_path: Path) -> None:
    assert format_started(state("grid", tmp_path), 1.0).endswith("Stop       Ctrl-C here, or gridq down")
    assert format_started(state("grid", tmp_path), 1.0, here=False).endswith("Stop       gridq down")


def test_a_queue_that_only_gridq_names_is_not_listed() -> None:
    seat = {
        "seat": "m.smollm", "busy": 0, "concurrency": 1, "state": "ready", "reason": "", "since": 0.0,
        "queues": ["llm:smollm2", "llm:any", "llm:any/embeddings"],
    }  # fmt: skip
    server = {
        "name": "valkey", "version": "8", "uptime_s": 1, "memory": 1, "memory_limit": 0, "appendonly": True,
        "appendonly_ok": True,
    }  # fmt: skip
    text = format_grid({"server": server, "jobs": {"queued": 0, "running": 0}, "seats": [seat]}, "redis://x")
    assert "llm:any" in text
    assert "embeddings" not in text
