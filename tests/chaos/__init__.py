"""The chaos suite of `gridq chaos`: a real grid on this machine, faults from a seed, and an audit of the
result.
"""
