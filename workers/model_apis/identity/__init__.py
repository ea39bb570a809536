"""Ids of answers and tool calls, which are the grid's own, names and ids as each API format takes them, and
which model wrote what in a history.

In: requests and answers of the OpenAI API format.
Out: the same, with ids, names and reasoning that the seat takes, and answers with ids that no endpoint chose.
Imported by: adapters, anthropic, openai, reasoning_marks.
"""

__all__ = ["call_pieces", "chat", "fitting", "origins"]
