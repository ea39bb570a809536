"""The commands that need a machine, one file a group; the entry point `gridq.commands` names `register`."""

from __future__ import annotations

import typer

from gridq.cli.command_tree import CommandTree


def register(app: typer.Typer) -> None:
    """Offer this package's commands to `gridq`."""
    CommandTree.offer("workers.cli.demo", "demo", "probe")
    CommandTree.offer("workers.cli.chaos", "chaos")
    CommandTree.offer("workers.cli.grid", "up", "down", "status")
    CommandTree.offer("workers.cli.worker", "worker", "join")
    CommandTree.offer("workers.cli.token", "token")
    CommandTree.offer("workers.cli.seat", "seat")
