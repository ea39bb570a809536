"""The state of a grid as read from its server, and the text that `gridq up` and `gridq status` print.

It uses no table library: loading one would double the time that `gridq status` takes.
"""

from __future__ import annotations

import shlex
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gridq.cli.output import PIPE_COLUMNS, format_span
from gridq.protocol import queue_names

if TYPE_CHECKING:
    from redis import Redis

    from gridq.store.keys import Keys


def read_grid(client: Redis, keys: Keys, url: str) -> dict[str, Any]:
    """Read the server's state, the live seats and the number of jobs, as JSON. If the server does not answer,
    the result holds `error` instead.
    """
    from redis.exceptions import RedisError

    from gridq.seats import registry
    from gridq.store.connection import translate_error

    try:
        pipe = client.pipeline(transaction=False)
        for section in ("server", "memory", "persistence"):
            pipe.info(section)
        pipe.zcard(keys("inbox"))
        pipe.zcard(keys("deadlines"))
        server, memory, persistence, queued, all_jobs = pipe.execute()
        seats = registry.read_live_seats(client, keys, routers=False)
    except (RedisError, OSError) as exc:
        return {"error": str(translate_error(exc, url))}
    name = "valkey" if "valkey_version" in server else "redis"
    return {
        "server": {
            "name": name,
            "version": server[f"{name}_version"],
            "uptime_s": server["uptime_in_seconds"],
            "memory": memory["used_memory"],
            "memory_limit": memory["maxmemory"],
            "appendonly": bool(persistence["aof_enabled"]),
            "appendonly_ok": persistence.get("aof_last_write_status", "ok") == "ok",
        },
        "seats": [
            {
                "seat": seat.seat, "worker": seat.worker, "kind": seat.kind, "concurrency": seat.concurrency,
                "busy": seat.busy, "state": seat.state, "reason": seat.reason, "queues": seat.queues,
                "version": seat.version, "since": seat.started_at,
            }
            for seat in seats
        ],
        "jobs": {"queued": queued, "running": max(0, all_jobs - queued)},
    }  # fmt: skip


def format_started(state: dict[str, Any], seconds: float, *, here: bool = True) -> str:
    """Return what `gridq up` and `gridq worker` print once all is live. `here`: Ctrl-C in this terminal stops
    it.
    """
    up = state["program"] == "grid"
    head = "The grid is up" if up else "This machine's seats are live"
    lines = [f"{head} after {seconds:.1f} s: machine {state['machine']}, home {state['home']}", ""]
    lines += _format_parts(state)
    if up and state["missing"]:  # `gridq worker` prints it while it probes
        lines += [*(f"Not found  {why}" for why in state["missing"]), ""]
    if up and state.get("notices"):
        lines += [*(f"Lent       {notice}" for notice in state["notices"]), ""]
    if "gateway" in state:
        lines.append(f"Gateway    {state['gateway']['url']}   {_format_curl(state)}")
    if "flower" in state:
        flower = state["flower"]
        lines.append(
            f"Flower     {flower['url']}, user {flower['user']}, password in {flower['password_file']}"
        )
    lines.append(f"Logs       {state['logs']}")
    if up:
        lines.append(
            f"Use        gridq run GRAPH.json   in any other shell {_describe_shells(state['home'])}"
        )
    lines.append(f"Inspect    gridq status{', gridq workers' if up else ''}")
    pid = state["pid"]
    lines.append(f"Stop       {'Ctrl-C here, or ' if here else ''}{'gridq down' if up else f'kill {pid}'}")
    return "\n".join(lines)


def format_program(state: dict[str, Any]) -> str:
    """Return what `gridq status` prints about a running `gridq up` or `gridq worker`."""
    what = "gridq up" if state["program"] == "grid" else "gridq worker"
    ready = "" if state["ready"] else ", not ready yet"
    since = format_span(time.time() - state["started_at"])
    lines = [f"{what}: process {state['pid']}, up {since}{ready}, home {state['home']}", ""]
    lines += _format_parts(state)
    if "gateway" in state:
        lines += [f"Gateway {_format_curl(state)}", ""]
    return "\n".join(lines)


def format_grid(state: dict[str, Any], url: str) -> str:
    """Return what `gridq status` prints about the grid on a server."""
    if "error" in state:
        return f"Server  {state['error']}"
    server, jobs = state["server"], state["jobs"]
    persistence = "data on disk (AOF)" if server["appendonly"] else "data in memory only (no AOF)"
    if server["appendonly"] and not server["appendonly_ok"]:
        persistence = "the last write to disk FAILED"
    limit = f" of {_format_size(server['memory_limit'])}" if server["memory_limit"] else ""
    memory = f"{_format_size(server['memory'])}{limit} used"
    program = f"{server['name'].capitalize()} {server['version']}"
    lines = [
        f"Server  {program} at {url}, up {format_span(server['uptime_s'])}, {memory}, {persistence}",
        f"Jobs    {jobs['queued']} queued, {jobs['running']} running",
    ]
    rows = [["SEAT", "SLOTS", "STATE", "UP", "QUEUES"]]
    for seat in state["seats"]:
        how = f"{seat['state']}: {seat['reason']}" if seat["reason"] else seat["state"]
        slots = f"{seat['busy']}/{seat['concurrency']}"
        queues = "  ".join(queue_names.format_offered(seat["queues"]))
        rows.append([seat["seat"], slots, how, format_span(time.time() - seat["since"]), queues])
    if len(rows) > 1:
        return "\n".join([*lines, "", *align_columns(rows)])
    return "\n".join([*lines, "Seats   none live"])


def align_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Format rows as lines with aligned columns. The last column is cut at the terminal's width; in a pipe or
    a file it is not cut.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    room = max(
        20, shutil.get_terminal_size((PIPE_COLUMNS, 24)).columns - sum(widths[:-1]) - 2 * (len(widths) - 1)
    )
    lines = []
    for row in rows:
        last = row[-1] if len(row[-1]) <= room else row[-1][: room - 2].rsplit("  ", 1)[0] + " …"
        cells = [cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=False)]
        lines.append("  ".join([*cells, last]).rstrip())
    return lines


def _format_curl(state: dict[str, Any]) -> str:
    """Return a command that shows whether the gateway answers. If the grid has API keys, the answer
    says so.
    """
    return f"curl {state['gateway']['url']}/v1/models"


def _describe_shells(home: str) -> str:
    """Describe the shells in which `gridq` finds the grid of `home`."""
    if Path(home) == Path.home() / ".gridq":
        return "of this user"
    return f"with GRIDQ_HOME={shlex.quote(home)}"


def _format_parts(state: dict[str, Any]) -> list[str]:
    rows = [["PART", "PID", "STATE", "UP", "RESTARTS", "DESCRIPTION"]]
    for part in state["parts"]:
        up = format_span(time.time() - part["started_at"]) if part["started_at"] else "-"
        pid = str(part["pid"] or "-")
        description = part["reason"] or part["about"]
        rows.append([part["name"], pid, part["state"], up, str(part["restarts"]), description])
    return [*align_columns(rows), ""]


def _format_size(count: int) -> str:
    value = float(count)
    for unit in ("B", "KB", "MB"):
        if value < 1024:
            return f"{value:.0f} {unit}"
        value /= 1024
    return f"{value:.1f} GB"
