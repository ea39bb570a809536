"""Turn a submitted graph into a plan in Redis, or into one error with nothing written.

In: a graph, an input, job options.
Out: an admitted job, a job in the inbox, or a refusal that says what would help.
Imported by: messaging, tasks, router, client, gateway, cli, testing.
"""

__all__ = [
    "admission",
    "estimates",
    "inbox",
    "planning",
    "quota_preview",
    "refusal_details",
    "request",
    "seat_filters",
    "seat_wait",
]
