"""The gateway's connection to the grid: submit jobs, wait for them, read how they ended.

In: a graph as JSON text, its input, job options, the ID of an API key.
Out: a job's ID, its stored answer, cached views of the grid.
Imported by: app, auth, metrics, routes.
"""

__all__ = ["connection", "models", "snapshot"]
