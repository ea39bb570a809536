"""Seats that reach their model with a vendor's own program, on its owner's login.

The login stays with the program: gridq starts it, passes it a prompt and reads its answer. gridq never reads
or copies a token.
"""
