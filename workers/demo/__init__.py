"""Run one graph on a temporary grid: `gridq demo`.

In: a graph and its input; by default the briefing in this folder.
Out: progress, the answer and a table of stages in the terminal.
Imported by: workers.cli.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["show"]

GRAPH = Path(__file__).with_name("briefing.json")
"""The demo's graph. `examples/` links to it."""

NOTES = Path(__file__).with_name("briefing-input.json")
"""The input of the demo's graph."""
