"""The governor: which seats are to be rung first. It prefers and never decides: a freed slot may take
whatever is there.
"""
