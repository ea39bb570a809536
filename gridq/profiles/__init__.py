"""The plug-in seam: a profile owns one kind of capability, such as `llm` or `gpu`.

In: the names in GRIDQ_PROFILES.
Out: profiles that state demands, probe the machine and run stages.
Imported by: stages, submission, execution, router, client, gateway, cli, gridq, testing,
workers.model_apis, workers.profiles, workers.machine, workers.process, workers.supervisor, workers.cli.
"""

__all__ = ["metric_keys", "profile"]
