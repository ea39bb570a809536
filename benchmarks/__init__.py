"""gridq beside bare Celery, on one server at one time: `make bench`, `python -m benchmarks`."""
