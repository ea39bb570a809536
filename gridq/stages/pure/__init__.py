"""The built-in stages without effects: text, JSON, lists, conditions.

In: a stage's name and its input.
Out: its output in bounded time and size, or StageError.
Imported by: output_check, allowed_hosts, http, runner.
"""

__all__ = ["bounds", "functions", "inputs", "json_parsing", "paths"]
