"""Count and collect what `GET /metrics` shows.

In: the state of the grid, ended jobs, this gateway's requests.
Out: metrics in the Prometheus format.
Imported by: app, routes.
"""

__all__ = ["collector", "request_metrics"]
