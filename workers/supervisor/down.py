"""`gridq down`: stop the `gridq up` of a home folder, and make sure that nothing of it is left."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from gridq.config.home import GRID_RECORD, WORKER_RECORD, read_running_record
from workers.machine.run_records import read_process_start
from workers.supervisor.deployment import DRAIN_MARGIN_SECONDS

STOP_MARGIN_SECONDS = 30.0
"""Time after the workers' drain in which routers, Flower and the server must stop."""
LEFT_OVER_SECONDS = 10.0
"""Time in which processes that are left may end by themselves."""


def stop_grid(home: Path, *, now: bool = False) -> dict[str, Any]:
    """Stop the grid and wait. Return `pid` (None: none ran), the `parts` stopped, those that were `killed`,
    and as `left` the process of a `gridq worker` in this home, which goes on. `now`: do not wait for the
    drain.

    A process is signalled only if it started when the record says: another process may have got its id.
    """
    state = read_running_record(home, GRID_RECORD)
    if state is None:
        state = _read_stale_record(home)
        killed = _wait_or_kill(_list_alive(state))
        return {"pid": None, "parts": [], "killed": killed, "left": _find_worker(home)}
    pid, began = state["pid"], time.monotonic()
    parts = state["parts"]
    _signal(state, signal.SIGTERM)
    hurry_at = began if now else began + state["drain"] + DRAIN_MARGIN_SECONDS + STOP_MARGIN_SECONDS
    hurried = False
    while read_process_start(pid) == state["process_start"]:
        parts = (read_running_record(home, GRID_RECORD) or {}).get("parts", parts)
        if time.monotonic() > hurry_at and not hurried:
            _signal(state, signal.SIGTERM)
            hurried, hurry_at = True, time.monotonic() + STOP_MARGIN_SECONDS
        elif time.monotonic() > hurry_at:
            _signal(state, signal.SIGKILL)
        time.sleep(0.05)
    killed = _wait_or_kill(_list_alive({"parts": parts}))
    names = [part["name"] for part in parts]
    return {"pid": pid, "parts": names, "killed": killed, "left": _find_worker(home)}


def _find_worker(home: Path) -> int | None:
    """Return the process of the `gridq worker` of this home, which has its own signals; None: none runs."""
    record = read_running_record(home, WORKER_RECORD)
    return None if record is None else record["pid"]


def _read_stale_record(home: Path) -> dict[str, Any]:
    """Read the record of a `gridq up` that was killed; its parts end by themselves."""
    try:
        found = json.loads((home / f"{GRID_RECORD}.json").read_text("utf-8"))
    except (OSError, ValueError):
        return {"parts": []}
    parts = found.get("parts") if isinstance(found, dict) else None
    return {"parts": [part for part in parts if _is_part(part)] if isinstance(parts, list) else []}


def _is_part(part: Any) -> bool:
    """Return whether a record's part has the shape that `gridq up` writes."""
    return (
        isinstance(part, dict)
        and "name" in part
        and "process_start" in part
        and isinstance(part.get("pid"), int)
    )


def _list_alive(state: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        part
        for part in state["parts"]
        if part["pid"] and read_process_start(part["pid"]) == part["process_start"]
    ]


def _wait_or_kill(parts: list[dict[str, Any]]) -> list[str]:
    """Wait for processes to end, then kill the rest. Return those that were killed."""
    until = time.monotonic() + LEFT_OVER_SECONDS
    while (left := _list_alive({"parts": parts})) and time.monotonic() < until:
        time.sleep(0.05)
    for part in left:
        _signal(part, signal.SIGKILL)
    return [f"{part['name']} (process {part['pid']})" for part in left]


def _signal(process: dict[str, Any], number: signal.Signals) -> None:
    if read_process_start(process["pid"]) == process["process_start"]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process["pid"], number)
