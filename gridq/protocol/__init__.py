"""Words that every part of the grid shares: models, states, queue names, limits and their text forms.

In: JSON, text from Redis, tables of the operator's files.
Out: frozen models, and errors that name the place at fault. No module here talks to a server.
Imported by: telemetry, graph and everything above them, workers.
"""

__all__ = [
    "budget_syntax",
    "calendar",
    "durations",
    "meters",
    "models",
    "money",
    "queue_names",
    "running_times",
    "seat_states",
    "sse",
    "state_diagram",
    "states",
    "token_count",
]
