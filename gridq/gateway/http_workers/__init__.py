"""Workers over HTTP, such as noether-grid's: who is enrolled, and the seats that this gateway hosts for them.

In: a worker's advertisement and heartbeats.
Out: live seats, whose stages are posted to the worker.
Imported by: app, routes.
"""

__all__ = ["addresses", "enrolment", "hosting"]
