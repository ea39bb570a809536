"""Keep everything that a grid shares in Redis.

In: settings, plans, leases, limits.
Out: connections, keys, typed calls of the Lua scripts, values, snapshots.
Imported by: jobs, seats, process, limits, submission, app, messaging, tasks, execution, router, views,
client, gateway, cli, testing, workers.machine, workers.process, workers.supervisor, workers.cli.
"""

__all__ = [
    "capacity",
    "connection",
    "keys",
    "library",
    "readiness",
    "redis_retries",
    "reliability",
    "replies",
    "schema",
    "scripts",
    "sentinel",
    "ttl_cache",
    "values",
]
