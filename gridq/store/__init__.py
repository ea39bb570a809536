"""Keep everything that a grid shares in Redis.

In: settings, plans, leases, limits.
Out: connections, keys, typed calls of the Lua scripts, values, snapshots.
Imported by: every other folder that reads or writes the grid.
"""

__all__ = [
    "capacity",
    "connection",
    "keys",
    "readiness",
    "record_fields",
    "reliability",
    "replies",
    "schema",
    "scripts",
    "snapshot",
    "ttl_cache",
    "values",
]
