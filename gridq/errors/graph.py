"""The graph cannot run as it was submitted."""

from __future__ import annotations

from gridq.errors.base import GridError


class GraphError(GridError):
    """The graph is not valid; nothing was queued."""

    code = "graph.invalid"
    remedy = "Correct the graph at `path`. `gridq validate` checks it without running it."


class InvalidJson(GraphError):
    """The graph's text is not JSON."""

    code = "graph.not_json"
    remedy = "Correct the text at the line and column in `path`."


class UnknownOperator(GraphError):
    """A node's `op` is not one of the ten operators."""

    code = "graph.unknown_operator"
    remedy = "Use one of the operators in `expected`."


class MissingField(GraphError):
    """A node lacks a field that its operator needs."""

    code = "graph.missing_field"
    remedy = "Add the field that `path` names."


class InvalidField(GraphError):
    """A field's value has the wrong type or is out of range."""

    code = "graph.invalid_field"
    remedy = "Change the value at `path` to what `expected` says."


class GraphCycle(GraphError):
    """A Python object in the graph contains itself."""

    code = "graph.cycle"
    remedy = "Copy the node instead of referring to it, or remove the loop."


class GraphTooLarge(GraphError):
    """The graph is nested deeper, or has more values or steps, than the limit."""

    code = "graph.too_large"
    remedy = "Split the graph, or raise GRIDQ_MAX_DEPTH or GRIDQ_MAX_STEPS."


class TypeMismatch(GraphError):
    """A stage's output type does not fit the input type of the stage that reads it."""

    code = "graph.type_mismatch"
    remedy = "Put a stage between the two that converts the value, or correct the config."


class UnknownStage(GraphError):
    """The catalogue has no stage with this id or name."""

    code = "stage.not_found"
    remedy = "Use one of the `candidates`, or set GRIDQ_STAGES or GRIDQ_STAGES_DIR for stages of your own."


class AmbiguousStage(GraphError):
    """Several stages match this id, prefix or name."""

    code = "stage.ambiguous"
    remedy = "Use the full id of one of the `candidates`."


class UnknownCapability(GraphError):
    """A stage has an effect that no enabled profile knows."""

    code = "capability.unknown"
    remedy = "Add the profile that owns the effect to GRIDQ_PROFILES."


class CapabilityConflict(GraphError):
    """A stage needs two capabilities at once, or one that its implementation does not match."""

    code = "capability.conflict"
    remedy = "Split the stage, so that each part needs one capability."
