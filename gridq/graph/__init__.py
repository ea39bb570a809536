"""The graph language: parse, validate and compile a graph to a plan. It is pure: no server, no clock.

In: a graph (text or Python objects) and a catalogue of stages.
Out: nodes, types, effects, ids and a flat plan, or a GraphError that names the path.
Imported by: jobs, profiles, stages, submission, messaging, execution, views, gateway, cli, testing,
workers.model_apis.
"""

__all__ = ["canonical", "catalogue", "compile", "interpreter", "nodes", "plan", "source", "types", "validate"]
