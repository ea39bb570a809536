"""Seats with the OpenAI API format.

In: requests of the OpenAI or the Anthropic API format.
Out: answers in the format of the request.
Imported by: adapters, workers.profiles.
"""

__all__ = ["client", "from_messages"]
