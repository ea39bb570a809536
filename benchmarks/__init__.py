"""Measure gridq against bare Celery, on one server at the same time.

In: names of groups (`python -m benchmarks [group …]`).
Out: one printed line for each figure, and `RESULTS.md`.
Imported by: its own integration tests.
"""
