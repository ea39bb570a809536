"""Do what every long-running program of the grid does: periodic threads, watchdog, parent watch, startup
errors, a small heap.

In: callables.
Out: threads, and one line where a program cannot start.
Imported by: limits, submission, execution, router, gateway, cli, workers.owner, workers.process,
workers.supervisor.
"""

__all__ = ["heap", "parent_watch", "periodic", "startup_errors", "watchdog"]
