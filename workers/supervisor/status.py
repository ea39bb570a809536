"""What a grid on this machine looks like: read from its server, and as the text that `gridq up` and `gridq
status` print. No table library: `status` is to be there at once.
"""

from __future__ import annotations

import shlex
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gridq.cli.output import PIPE_COLUMNS, format_span

if TYPE_CHECKING:
    from redis import Redis

    from gridq.store.keys import Keys


def read_grid(client: Redis, keys: Keys, url: str) -> dict[str, Any]:
    """The server at `url`, the live seats and how many jobs there are, as JSON; `error` in their place where
    the server does not answer.
    """
    from redis.exceptions import RedisError

    from gridq.seats import registry
    from gridq.store.connection import translate

    try:
        look = client.pipeline(transaction=False)
        for section in ("server", "memory", "persistence"):
            look.info(section)
        look.zcard(keys("inbox"))
        look.zcard(keys("deadlines"))
        server, memory, persistence, queued, all_jobs = look.execute()
        seats = registry.read_live_seats(client, keys, routers=False)
    except (RedisError, OSError) as exc:
        return {"error": str(translate(exc, url))}
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
    """What `gridq up` and `gridq worker` show once all is live; `here`: the terminal's Ctrl-C reaches it."""
    up = state["program"] == "grid"
    head = "The grid is up" if up else "This machine serves the grid"
    lines = [f"{head} after {seconds:.1f} s: machine {state['machine']}, home {state['home']}", ""]
    lines += _parts(state)
    if up and state["missing"]:  # `gridq worker` has told it as it probed
        lines += [*(f"Not found  {why}" for why in state["missing"]), ""]
    if "gateway" in state:
        lines.append(f"Gateway    {state['gateway']['url']}   {_try(state)}")
    if "flower" in state:
        flower = state["flower"]
        lines.append(
            f"Flower     {flower['url']}, user {flower['user']}, password in {flower['password_file']}"
        )
    lines.append(f"Logs       {state['logs']}")
    if up:
        lines.append(f"Use it     gridq run GRAPH.json   in any other shell {_that_finds(state['home'])}")
    lines.append(f"Look       gridq status{', gridq workers' if up else ''}")
    pid = state["pid"]
    lines.append(f"Stop       {'Ctrl-C here, or ' if here else ''}{'gridq down' if up else f'kill {pid}'}")
    return "\n".join(lines)


def now(state: dict[str, Any]) -> str:
    """What `gridq status` shows of one running program."""
    what = "gridq up" if state["program"] == "grid" else "gridq worker"
    ready = "" if state["ready"] else ", not ready yet"
    since = format_span(time.time() - state["started_at"])
    lines = [f"{what} runs as process {state['pid']} since {since}{ready}; home {state['home']}", ""]
    lines += _parts(state)
    if "gateway" in state:
        lines += [f"Gateway {_try(state)}", ""]
    return "\n".join(lines)


def grid(state: dict[str, Any], url: str) -> str:
    """What `gridq status` shows of the grid on a server."""
    if "error" in state:
        return f"Server  {state['error']}"
    server, jobs = state["server"], state["jobs"]
    kept = "kept on disk (AOF)" if server["appendonly"] else "in memory only (no AOF)"
    if server["appendonly"] and not server["appendonly_ok"]:
        kept = "its last write to the disk FAILED"
    limit = f" of {_size(server['memory_limit'])}" if server["memory_limit"] else ""
    memory = f"{_size(server['memory'])}{limit} in use"
    lines = [
        f"Server  {server['name'].capitalize()} {server['version']} at {url}, up {format_span(server['uptime_s'])}, "
        f"{memory}, {kept}",
        f"Jobs    {jobs['queued']} queued, {jobs['running']} running",
    ]
    rows = [["SEAT", "CONCURRENCY", "STATE", "UP", "QUEUES"]]
    for seat in state["seats"]:
        how = f"{seat['state']}: {seat['reason']}" if seat["reason"] else seat["state"]
        concurrency = f"{seat['busy']}/{seat['concurrency']}"
        rows.append(
            [seat["seat"], concurrency, how, format_span(time.time() - seat["since"]), "  ".join(seat["queues"])]
        )
    if len(rows) > 1:
        return "\n".join([*lines, "", *align_columns(rows)])
    return "\n".join([*lines, "Seats   none is live"])


def align_columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of text as lines with aligned columns; the last column is cut at the terminal's width, and in a
    pipe or a file not at all.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    room = max(20, shutil.get_terminal_size((PIPE_COLUMNS, 24)).align_columns - sum(widths[:-1]) - 2 * (len(widths) - 1))
    lines = []
    for row in rows:
        last = row[-1] if len(row[-1]) <= room else row[-1][: room - 2].rsplit("  ", 1)[0] + " …"
        cells = [cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=False)]
        lines.append("  ".join([*cells, last]).rstrip())
    return lines


def _try(state: dict[str, Any]) -> str:
    """A command that shows that the gateway answers. Where the grid asks for keys, it says so itself."""
    return f"curl {state['gateway']['url']}/v1/models"


def _that_finds(home: str) -> str:
    """Which shell finds the grid of `home` without another setting."""
    if Path(home) == Path.home() / ".gridq":
        return "of this user"
    return f"with GRIDQ_HOME={shlex.quote(home)}"


def _parts(state: dict[str, Any]) -> list[str]:
    rows = [["PART", "PID", "STATE", "UP", "RESTARTS", "WHERE"]]
    for part in state["parts"]:
        up = format_span(time.time() - part["started_at"]) if part["started_at"] else "-"
        pid = str(part["pid"] or "-")
        where = part["reason"] or part["about"]
        rows.append([part["name"], pid, part["state"], up, str(part["restarts"]), where])
    return [*align_columns(rows), ""]


def _size(count: int) -> str:
    value = float(count)
    for unit in ("B", "KB", "MB"):
        if value < 1024:
            return f"{value:.0f} {unit}"
        value /= 1024
    return f"{value:.1f} GB"
