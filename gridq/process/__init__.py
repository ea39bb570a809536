"""Do what every long-running program of the grid does: periodic threads, watchdog, parent watch, startup
errors.

In: callables.
Out: threads, and one line where a program cannot start.
Imported by: limits, execution, router, cli, workers.owner, workers.process, workers.supervisor.
"""

__all__ = ["parent_watch", "periodic", "startup_errors", "watchdog"]
