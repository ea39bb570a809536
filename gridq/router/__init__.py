"""Run the router: admit the inbox, run pure stages, sweep, rank seats, enforce quotas.

In: the messages of `gridq.run_graph`, the inbox, the live seats' records.
Out: admitted jobs, Celery answers, ranks.
Imported by: nobody.
"""

__all__ = []
