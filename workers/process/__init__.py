"""Run one worker process: a Celery worker that serves one seat of this machine.

In: Celery's command line and signals, the seat's offer and terms.
Out: a live seat with its session, heartbeat and owner's watch.
Imported by: workers.celery.
"""

__all__ = ["worker"]
