"""The vendors' programs, one module for each.

In: a call, the output of the program.
Out: the arguments of the program, the text and the usage of its answer.
Imported by: program_seats, seat_table, discovery.
"""

__all__ = ["all_vendors"]
