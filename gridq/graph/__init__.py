"""The graph language: parse, validate and compile a graph to a plan. It is pure: it knows no server and no clock.

In: a graph (text or Python objects) and a catalogue of stages.
Out: nodes, types, effects, ids and a flat plan, or a GraphError that names the path.
Imported by: stages, profiles, jobs, submission, execution, router, views, client, gateway, cli.
"""

__all__ = ["canonical", "catalogue", "compile", "effects", "nodes", "plan", "source", "types", "validate"]
