"""Follow the streams of many jobs on one Redis connection, and format their pieces as server-sent events.

In: a job's ID, and the entry to resume after.
Out: its pieces in order, then its end.
Imported by: grid, http, http_workers, routes.
"""

__all__ = ["cancellation", "follower", "pipe", "relay", "resume", "sse"]
