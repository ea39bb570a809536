"""Identify callers by their API keys, and enforce the limits of each key.

In: a request.
Out: a Caller, or an error with status 401, 403 or 429.
Imported by: app, routes.
"""

__all__ = ["caller"]
