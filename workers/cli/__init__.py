"""The commands that need a machine, one file a group; the entry point `gridq.commands` names `register`."""

from __future__ import annotations

import typer

from gridq.cli.command_tree import Tree


def register(app: typer.Typer) -> None:
    """Offer this package's commands to `gridq`."""
    Tree.offer("workers.cli.demo", "demo", "probe")
    Tree.offer("workers.cli.chaos", "chaos")
    Tree.offer("workers.cli.grid", "up", "down", "status")
    Tree.offer("workers.cli.worker", "worker", "join")
    Tree.offer("workers.cli.token", "token")
    Tree.offer("workers.cli.seat", "seat")
