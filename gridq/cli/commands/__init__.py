"""Implement the commands of `gridq`: one module for each command or group, with a typer app `app`.

In: options and arguments, parsed by typer.
Out: tables, JSON and exit codes, by the modules of gridq.cli.
Imported by: workers.demo, workers.cli.
"""

__all__ = ["validate", "workers"]
