"""A tutorial that runs: one idea a file, in reading order.

Every test submits work to a real grid, which `conftest.py` starts: a server, a router and three workers, each
a separate process. Each worker runs the stages of one seat. The seat `local` runs the stages of
`own_stages.py`, and `weather` those of `weather_profile.py`. The seat `bench` runs stages that stand in for a
model: they echo, stream, fail or sleep as their input says.
"""
