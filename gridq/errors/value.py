"""A value cannot be passed on: an input, an output, a stored one."""

from __future__ import annotations

from gridq.errors.base import GridError


class InputTooLarge(GridError):
    """The job's input or a stage's input is over the limit."""

    code = "input.too_large"


class OutputTooLarge(GridError):
    """A stage's output is over the limit."""

    code = "output.too_large"


class ValueGone(GridError):
    """A stored value is no longer there."""

    code = "value.gone"


class ValueNotJson(GridError):
    """A value is not JSON (NaN, a set, an object that contains itself …)."""

    code = "value.not_json"


class StreamTrimmed(ValueGone):
    """A reader fell so far behind a job's stream that what it would read next is there no more."""

    code = "stream.trimmed"
