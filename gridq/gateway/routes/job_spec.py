"""The body of `POST /jobs`: a graph, its input and the job's options."""

from __future__ import annotations

import difflib
from typing import Annotated, Any

from pydantic import ConfigDict, Field, ValidationError, model_validator

from gridq.errors import RequestError, first_fault
from gridq.gateway.http.request_body import check_keys, parse_body
from gridq.jobs.record import JobOptions
from gridq.protocol.models import Json

NOETHER_NAMES = {"deadline_secs": "deadline", "queue_timeout_secs": "queue_timeout"}
"""noether-grid's names of options."""

EXAMPLE_GRAPH: dict[str, Any] = {
    "root": {"op": "Stage", "id": "text_template", "config": {"template": "Hello, {{name}}"}}
}
"""The graph of the examples."""


class JobSpec(JobOptions):
    """A graph to run. The options of the job stand beside graph and input.

    `deadline_secs` and `queue_timeout_secs` are noether-grid's names of `deadline` and `queue_timeout`.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        json_schema_extra={
            "examples": [
                {"graph": EXAMPLE_GRAPH, "input": {"name": "Ann"}},
                {
                    "graph": EXAMPLE_GRAPH,
                    "input": {"name": "Ann"},
                    "queue_timeout_secs": 30,
                    "budget_cents": 5,
                },
            ]
        },
    )

    graph: dict[str, Any] | str = Field(description="The graph, as a JSON object or as JSON text.")
    input: Json = Field(None, description="The graph's input, any JSON value.")
    job: str | None = Field(
        None,
        pattern=r"^\.*[A-Za-z0-9_-][A-Za-z0-9_.-]*$",
        max_length=128,
        description="An ID for the job, if you choose it yourself. Submitting the same ID again returns the "
        "existing job. It needs at least one character other than a dot, because it is part of URLs.",
    )
    deadline_secs: Annotated[float, Field(gt=0)] | None = Field(
        None, description="noether-grid's name of `deadline`, in seconds."
    )
    queue_timeout_secs: Annotated[float, Field(gt=0)] | None = Field(
        None, description="noether-grid's name of `queue_timeout`, in seconds."
    )
    key: None = Field(None, exclude=True, description="Not allowed in a body: API keys are sent in a header.")

    @model_validator(mode="before")
    @classmethod
    def _convert_lists(cls, given: Any) -> Any:
        """Convert JSON lists to the tuples that options are."""
        if not isinstance(given, dict):
            return given
        names = JobOptions.model_fields.keys() & given.keys()
        return given | {name: tuple(given[name]) for name in names if isinstance(given[name], list)}

    @model_validator(mode="after")
    def _check_aliases(self) -> JobSpec:
        for name in NOETHER_NAMES.values():
            ours, theirs = getattr(self, name), getattr(self, f"{name}_secs")
            if ours is not None and theirs is not None and ours != theirs:
                raise ValueError(f"{name} and {name}_secs name the same option and differ")
        return self

    def options(self, base: JobOptions) -> JobOptions:
        """Return the job's options: those of `base`, overridden by the body.

        The end of its stream is kept in any case, so that clients can wait for it.
        """
        given = {name: getattr(self, name) for name in self.model_fields_set & JobOptions.model_fields.keys()}
        for theirs, ours in NOETHER_NAMES.items():
            if getattr(self, theirs) is not None:
                given[ours] = getattr(self, theirs)
        given["stream"] = True if self.stream is True else "end"
        return base.model_copy(update=given)


def read_spec(raw: bytes | bytearray, depth: int) -> JobSpec:
    """Parse the body of a submission. RequestError names the field that is invalid."""
    body = parse_body(raw, depth)
    check_keys(raw, body)
    unknown = body.keys() - JobSpec.model_fields.keys()
    if unknown:
        name = min(unknown)[:80]
        known = ", ".join(field for field in JobSpec.model_fields if field != "key")
        near = difflib.get_close_matches(name, JobSpec.model_fields, 1)
        fix = f"use {near[0]!r}" if near else "remove it"
        raise RequestError(
            f"Unknown field: {name!r}", {"path": name, "expected": f"one of {known}", "fix": fix}
        )
    try:
        return JobSpec.model_validate(body)
    except ValidationError as exc:
        path, reason = first_fault(exc)
        details = {"path": path[:200], "reason": reason[:500]}
        raise RequestError(f"Invalid field: {path.partition('.')[0]!r}", details) from None
