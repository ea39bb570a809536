"""Write the logs: events about jobs and seats, with secrets hidden.

In: events with fields.
Out: log lines and sentences.
Imported by: everything above protocol.
"""

__all__ = ["logs", "narration"]
