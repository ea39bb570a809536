"""The routes of the gateway, one module for each group of paths.

In: a request that the middleware let in.
Out: a response, or a GridError that `http.errors` turns into one.
Imported by: app.
"""

__all__ = [
    "anthropic",
    "enrolment",
    "events",
    "health",
    "jobs",
    "metrics",
    "openai",
    "queues",
    "responses",
    "unsupported",
    "workers",
]
