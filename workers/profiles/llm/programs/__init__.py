"""Seats that reach their model with a vendor's own program, on its owner's login.

The login stays with the program: gridq starts it, passes it a prompt and reads its answer. gridq never reads
or copies a token.

In: `[[llm]]` tables with `cli`, requests of the OpenAI API format.
Out: one seat for each login, answers of the OpenAI API format.
Imported by: seats_from_table, profile, probe.
"""

__all__ = ["backend", "discovery", "program_seats", "seat_table"]
