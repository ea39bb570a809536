"""Seats with Google's API format.

In: requests of the OpenAI API format.
Out: answers in the OpenAI API format.
Imported by: adapters, workers.profiles.
"""

__all__ = ["client", "from_chat"]
