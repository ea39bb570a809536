"""Find the seats of this machine, and let the machine join a grid.

In: the seats file, the enabled profiles, a join token.
Out: seats ready to be served, the home folder's configuration and run records.
Imported by: workers.process, workers.supervisor, workers.cli.
"""

__all__ = ["join_tokens", "joining", "locks", "mirror_registry", "probing", "run_records", "seats"]
