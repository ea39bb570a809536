"""Seats with the Anthropic API format.

In: requests of the Anthropic or the OpenAI API format.
Out: answers in the format of the request.
Imported by: adapters, forwarding, workers.profiles.
"""

__all__ = ["client", "from_chat", "messages_seat"]
