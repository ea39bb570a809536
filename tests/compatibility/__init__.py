"""The compatibility matrix: which feature of which client works at which seat, as the tests found it.

A test states the outcome of each cell (client, feature, seat) with the fixture `matrix`; there are two: it
worked, or it was refused by the name of a field. `results.json` holds them, docs/compatibility.md shows them,
and a test fails if it finds another outcome. README.md says how a client gets a row.
"""
