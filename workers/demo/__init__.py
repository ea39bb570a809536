"""What `gridq demo` runs: a graph, its input, and the grid to run it on."""

from __future__ import annotations

from pathlib import Path

GRAPH = Path(__file__).with_name("briefing.json")
"""The graph; `examples/` points at it."""

NOTES = Path(__file__).with_name("briefing-input.json")
"""Its input."""
