"""Commands of `gridq` that need a machine: up, down, status, worker, join, probe, seat, token, models, chat,
demo, chaos.

In: command lines.
Out: programs on this machine, tables and JSON.
Imported by: nobody.
"""

from __future__ import annotations

import typer

from gridq.cli.command_tree import CommandTree


def register(app: typer.Typer) -> None:
    """Add this package's commands to `gridq`."""
    CommandTree.register("workers.cli.demo", "demo", "probe")
    CommandTree.register("workers.cli.chaos", "chaos")
    CommandTree.register("workers.cli.grid", "up", "down", "status")
    CommandTree.register("workers.cli.worker", "worker", "join")
    CommandTree.register("workers.cli.token", "token")
    CommandTree.register("workers.cli.seat", "seat")
    CommandTree.register("workers.cli.gpus", "gpus")
    CommandTree.register("workers.cli.models", "models")
    CommandTree.register("workers.cli.chat", "chat")
