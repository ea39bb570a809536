"""Seats with the OpenAI API format, and OpenAI's Responses at all seats.

In: requests of the OpenAI or the Anthropic API format, and of Responses.
Out: answers in the format of the request.
Imported by: adapters, workers.profiles.
"""

__all__ = ["client", "from_messages", "from_responses", "legacy_functions", "responses_seat"]
