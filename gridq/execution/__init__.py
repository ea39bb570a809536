"""Serve one seat: claim stages, run them, record their outcomes.

In: claims from the server, a runner for stages.
Out: recorded outputs and failures; the seat's circuit breaker and pauses.
Imported by: router, gateway, testing, workers.owner, workers.process.
"""

__all__ = ["attempt", "outcome", "session", "shutdown", "tasks"]
