"""The commands that need a machine, one file a group; the entry point `gridq.commands` names `register`."""

from __future__ import annotations

import typer

from workers.cli import chaos, demo, grid, token, worker


def register(app: typer.Typer) -> None:
    """Add this package's commands to `gridq`."""
    app.add_typer(demo.app)
    app.add_typer(chaos.app)
    app.add_typer(grid.app)
    app.add_typer(worker.app)
    app.add_typer(token.app)
