"""Rank the seats of each queue: which of several idle seats gets a wake-up first.

A rank is a preference, not a decision: a slot that becomes free takes whatever is there.

In: the live seats' records and budgets.
Out: `rank:<queue>` keys.
Imported by: router.
"""

__all__ = ["governor"]
