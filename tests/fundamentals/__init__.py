"""A tutorial that runs: one idea a file, in reading order.

Every test here submits work to a real grid: a server, a router and two workers, each a process of its own
(`conftest.py` starts them). The seat `local` runs the stages of `own_stages.py`; the seat `bench` runs stages
that stand in for a model: they echo, count, fail or sleep as their input says.
"""
