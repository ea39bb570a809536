"""Import the module of a command only when the command is named, or when all commands are listed."""

from __future__ import annotations

from importlib import import_module
from typing import Any, ClassVar

import typer
import typer.main

from gridq.cli.exit_codes import CommandGroup


class CommandTree(CommandGroup):
    """The group of all commands: those registered by name, and those added to the typer app."""

    modules: ClassVar[dict[str, str]] = {}
    """Command → the module whose `app` has it."""

    @classmethod
    def register(cls, module: str, *commands: str) -> None:
        """Register commands that the typer app `app` of `module` has. A name registered later wins."""
        cls.modules |= dict.fromkeys(commands, module)

    def list_commands(self, ctx: Any) -> list[str]:
        return list(dict.fromkeys([*self.modules, *self.commands]))

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in self.modules and cmd_name not in self.commands:
            wrapper = typer.Typer(rich_markup_mode=None)
            wrapper.add_typer(import_module(self.modules[cmd_name]).app)
            self.commands = {**typer.main.get_group(wrapper).commands, **self.commands}
        return super().get_command(ctx, cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in self.modules:  # unknown: load all, to suggest similar names
            for name in self.modules:
                self.get_command(ctx, name)
        return super().resolve_command(ctx, args)
