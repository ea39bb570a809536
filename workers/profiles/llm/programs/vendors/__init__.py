"""The vendors' programs, one module for each.

In: a call, the output of the program.
Out: the arguments of the program, the text and the usage of its answer.
Imported by: program_seats, discovery, seat_table.
"""

__all__ = ["all_vendors"]
