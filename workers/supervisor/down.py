"""`gridq down`: end the `gridq up` of a home folder, and see that nothing of it is left."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from gridq.config.home import GRID, running
from workers.machine.run_records import read_process_start
from workers.supervisor.deployment import BEYOND_DRAIN

BEYOND_WORKERS = 30.0
"""Seconds beyond the workers' end that routers, Flower and the server may take together."""
LAST_WORD = 10.0
"""Seconds that whoever is left may take to end by itself."""


def stop_grid(home: Path, *, quickly: bool = False) -> dict[str, Any]:
    """End it and wait: `pid` (None: none ran), `parts` that ended, `killed`: what had to be killed.

    Processes are ended by their ids, each only if it is still the one that began when the record says.
    """
    state = running(home, GRID)
    if state is None:
        state = _left_behind(home)
        return {"pid": None, "parts": [], "killed": _see_off(_alive(state), LAST_WORD)}
    pid, began = state["pid"], time.monotonic()
    parts = state["parts"]
    _signal(state, signal.SIGTERM)
    hurry_at = began if quickly else began + state["drain"] + BEYOND_DRAIN + BEYOND_WORKERS
    hurried = False
    while read_process_start(pid) == state["born"]:
        parts = (running(home, GRID) or {}).get("parts", parts)
        if time.monotonic() > hurry_at and not hurried:
            _signal(state, signal.SIGTERM)
            hurried, hurry_at = True, time.monotonic() + BEYOND_WORKERS
        elif time.monotonic() > hurry_at:
            _signal(state, signal.SIGKILL)
        time.sleep(0.05)
    killed = _see_off(_alive({"parts": parts}), LAST_WORD)
    return {"pid": pid, "parts": [part["name"] for part in parts], "killed": killed}


def _left_behind(home: Path) -> dict[str, Any]:
    """The record of one that was killed; its parts end by themselves."""
    try:
        found = json.loads((home / f"{GRID}.json").read_text("utf-8"))
    except (OSError, ValueError):
        return {"parts": []}
    parts = found.get("parts") if isinstance(found, dict) else None
    return {"parts": [part for part in parts if _is_part(part)] if isinstance(parts, list) else []}


def _is_part(part: Any) -> bool:
    """Whether a record's part is one that this program writes; whatever else stands there is nobody's."""
    return isinstance(part, dict) and "name" in part and "born" in part and isinstance(part.get("pid"), int)


def _alive(state: dict[str, Any]) -> list[dict[str, Any]]:
    return [part for part in state["parts"] if part["pid"] and read_process_start(part["pid"]) == part["born"]]


def _see_off(parts: list[dict[str, Any]], within: float) -> list[str]:
    """Wait for processes to end, then kill them; who had to be killed."""
    until = time.monotonic() + within
    while (left := _alive({"parts": parts})) and time.monotonic() < until:
        time.sleep(0.05)
    for part in left:
        _signal(part, signal.SIGKILL)
    return [f"{part['name']} (process {part['pid']})" for part in left]


def _signal(process: dict[str, Any], number: signal.Signals) -> None:
    if read_process_start(process["pid"]) == process["born"]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process["pid"], number)
