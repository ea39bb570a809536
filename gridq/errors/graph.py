"""The graph cannot be run as it was given."""

from __future__ import annotations

from gridq.errors.base import GridError


class GraphError(GridError):
    """The graph cannot be run; nothing was queued."""

    code = "graph.invalid"


class InvalidJson(GraphError):
    """The text is not JSON."""

    code = "graph.not_json"


class UnknownOperator(GraphError):
    """A node's `op` is none of the ten operators."""

    code = "graph.unknown_operator"


class MissingField(GraphError):
    """A node lacks a field that its operator needs."""

    code = "graph.missing_field"


class InvalidField(GraphError):
    """A field's value has the wrong type or is out of range."""

    code = "graph.invalid_field"


class GraphCycle(GraphError):
    """A node contains itself by reference."""

    code = "graph.cycle"


class GraphTooLarge(GraphError):
    """The graph is deeper or has more steps than the limit."""

    code = "graph.too_large"


class TypeMismatch(GraphError):
    """A stage's output type does not fit the input type of the stage that reads it."""

    code = "graph.type_mismatch"


class UnknownStage(GraphError):
    """A stage reference resolves to nothing."""

    code = "stage.not_found"


class AmbiguousStage(GraphError):
    """A stage reference resolves to several stages."""

    code = "stage.ambiguous"


class UnknownCapability(GraphError):
    """A stage declares an effect that no enabled profile knows."""

    code = "capability.unknown"


class CapabilityConflict(GraphError):
    """A stage needs two kinds of capability at once."""

    code = "capability.conflict"
