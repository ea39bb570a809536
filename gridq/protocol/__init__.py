"""Words that every part of the grid shares: models, states, queue names, limits and their text forms.

In: JSON, text from Redis, tables of the operator's files.
Out: frozen models, and errors that name the place at fault. No module here talks to a server.
Imported by: telemetry, graph, store, jobs, seats, profiles, stages, limits, submission, messaging, tasks,
execution, router, views, client, gateway, cli, testing, workers.model_apis, workers.profiles,
workers.owner, workers.machine, workers.process, workers.supervisor, workers.demo, workers.cli.
"""

__all__ = [
    "betas",
    "budget_syntax",
    "calendar",
    "durations",
    "masking",
    "meters",
    "models",
    "money",
    "queue_aliases",
    "queue_names",
    "response_needs",
    "response_object",
    "running_times",
    "seat_states",
    "sse",
    "states",
    "token_count",
]
