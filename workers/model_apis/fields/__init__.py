"""What becomes of each field of a request at a seat of another API format, one table for each translation.

In: the fields of a request.
Out: what the seat gets, the hints that are left out, or a refusal by name.
Imported by: anthropic, context_wrappers, google, openai, workers.profiles.
"""

__all__ = ["chat", "messages", "responses", "table"]
