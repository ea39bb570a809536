"""Write the logs: events about jobs and seats, with secrets hidden.

In: events with fields.
Out: log lines and sentences.
Imported by: stages, submission, app, messaging, execution, router, cli, workers.process, workers.demo.
"""

__all__ = ["logs", "narration", "tracebacks"]
