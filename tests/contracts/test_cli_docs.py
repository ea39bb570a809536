"""The page about the command line names all commands, and no others."""

from __future__ import annotations

import re
from pathlib import Path

import typer.main

from gridq import cli
from gridq.cli import exit_codes

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "cli.md").read_text("utf-8")


def commands() -> dict[str, object]:
    cli.load_commands()
    group = typer.main.get_group(cli.app)
    context = typer.Context(group)
    return {name: group.get_command(context, name) for name in group.list_commands(context)}


def test_every_command_has_a_section_and_every_section_a_command() -> None:
    assert sorted(re.findall(r"^### `gridq (\w+)`$", PAGE, re.M)) == sorted(commands())


def test_every_command_of_a_group_is_named() -> None:
    for name, command in commands().items():
        section = PAGE.partition(f"### `gridq {name}`")[2].partition("\n### ")[0]
        for below in getattr(command, "commands", {}):
            assert f"`{below}`" in section or f"`gridq {name} {below}`" in section, (name, below)


def test_every_exit_code_is_explained() -> None:
    codes = {value for name, value in vars(exit_codes).items() if name.isupper() and isinstance(value, int)}
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", PAGE, re.M)} == codes | {0}
    listed = {int(code) for code in re.findall(r"(?:: |; )(\d+) ", exit_codes.EPILOG)}
    assert listed == codes | {0}


def test_outputs_name_no_folder_of_the_machine() -> None:
    assert not re.findall(r"(?<![\w.])/(?:tmp|work|root|home)\b", PAGE)
    assert "gqjoin_" not in PAGE
