"""The plug-in seam: a profile owns one kind of capability, such as `llm` or `gpu`.

In: the names in GRIDQ_PROFILES.
Out: profiles that state demands, probe the machine and run stages.
Imported by: stages, submission, execution, router, client, gateway, cli, workers, and packages with profiles.
"""

__all__ = ["conformance", "profile"]
