"""Seats whose model is reached by a vendor's own program, on its owner's login.

The login stays with the vendor's program: gridq starts it, hands it a prompt and reads its answer; it reads
and copies no token.
"""
