"""The plug-in seam: a profile owns one kind of capability, such as `llm` or `gpu`.

In: the names in GRIDQ_PROFILES.
Out: profiles that state demands, probe the machine and run stages.
Imported by: stages, submission, execution, views, client, gateway, cli, and by packages that offer profiles.
"""

__all__ = ["conformance", "profile"]
