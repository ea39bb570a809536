"""Decide when the seats of this machine are lent to the grid, and on what terms.

In: the `owner` and `lend` keys of the seats file, the owner's switch, the use of the machine.
Out: a seat that is lent or paused, and a note of that in the home folder.
Imported by: workers.machine, workers.process, workers.cli.
"""

__all__ = ["activity", "lend", "recovery", "rules", "switch", "watch"]
