"""An input, an output or a stored value cannot be used."""

from __future__ import annotations

from gridq.errors.base import GridError


class InputTooLarge(GridError):
    """The input of the job or of a stage is larger than the limit."""

    code = "input.too_large"
    remedy = "Send less, or raise the limit that `fix` names on every machine."


class OutputTooLarge(GridError):
    """A stage's output is larger than the limit."""

    code = "output.too_large"
    remedy = "Return less, or raise GRIDQ_MAX_VALUE on every machine."


class ValueGone(GridError):
    """A stored value no longer exists."""

    code = "value.gone"
    remedy = "Submit the job again; GRIDQ_RESULT_TTL says how long values are kept."


class ValueNotJson(GridError):
    """A value is not JSON, such as NaN, a set or an object that contains itself."""

    code = "value.not_json"
    remedy = "Pass dicts with text keys, lists, text, finite numbers, booleans and None only."


class StreamTrimmed(ValueGone):
    """The reader of a job's stream fell so far behind that its next piece is gone."""

    code = "stream.trimmed"
    remedy = "Fetch the whole answer when the job has ended."
