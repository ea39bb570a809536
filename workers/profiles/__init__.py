"""The profiles that come with gridq, one package for each kind.

In: a probe's tables, a stage and its input.
Out: the seats of this machine, the output of a stage.
Imported by: workers.machine, workers.process, workers.cli, workers.demo.
"""

__all__ = ["gpu"]
