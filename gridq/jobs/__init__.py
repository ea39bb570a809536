"""Describe a job: its options, its record in Redis, its idempotency key, its end, and how to wait for it.

In: job options, a compiled plan, replies of Redis.
Out: validated options, fields of the job's record, the end of a job.
Imported by: seats, limits, submission, messaging, tasks, router, views, client, gateway, cli.
"""

__all__ = ["idempotency", "record", "server_outage", "waiting"]
