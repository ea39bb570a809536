"""The tree of all commands, in which the module of one is imported when it is named, or all are listed."""

from __future__ import annotations

from importlib import import_module
from typing import Any, ClassVar

import typer
import typer.main

from gridq.cli.exit_codes import Commands


class Tree(Commands):
    """The group of all commands: those offered by name, and those added to the typer app."""

    offered: ClassVar[dict[str, str]] = {}
    """Command → its module, in whose `app` it stands."""

    @classmethod
    def offer(cls, module: str, *commands: str) -> None:
        """Say that the typer app `app` of `module` has these commands. A later offer of a name counts."""
        cls.offered |= dict.fromkeys(commands, module)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(dict.fromkeys([*self.offered, *self.commands]))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in self.offered and cmd_name not in self.commands:
            around = typer.Typer(rich_markup_mode=None)
            around.add_typer(import_module(self.offered[cmd_name]).app)
            self.commands = {**typer.main.get_group(around).commands, **self.commands}
        return super().get_command(ctx, cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.offered:  # one that is not known is likened to all that are
            for name in self.offered:
                self.get_command(ctx, name)
        return super().resolve_command(ctx, args)
