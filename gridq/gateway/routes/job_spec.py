"""What `POST /jobs` takes: a graph, its input and the options of the job."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field, ValidationError, model_validator

from gridq.errors import RequestError, first_fault
from gridq.gateway.http.request_body import parse_body
from gridq.jobs.record import JobOptions
from gridq.protocol.models import Json

NOETHER_NAMES = {"deadline_secs": "deadline", "queue_timeout_secs": "queue_timeout"}
"""noether-grid's names of options."""

EXAMPLE_GRAPH: dict[str, Any] = {
    "root": {"op": "Stage", "id": "text_template", "config": {"template": "Hello, {name}"}}
}
"""The graph of the examples."""


class JobSpec(JobOptions):
    """A graph to run: what `POST /jobs` takes. Every option of a job stands beside graph and input.

    `deadline_secs` and `queue_timeout_secs` are noether-grid's names of `deadline` and `queue_timeout`.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        json_schema_extra={
            "examples": [
                {"graph": EXAMPLE_GRAPH, "input": {"name": "Ann"}},
                {"graph": EXAMPLE_GRAPH, "input": {"name": "Ann"}, "queue_timeout_secs": 30, "budget_cents": 5},
            ]
        },
    )

    graph: dict[str, Any] | str = Field(description="a graph as JSON object, or as text")
    input: Json = Field(None, description="any JSON value")
    job: str | None = Field(
        None,
        pattern=r"^\.*[A-Za-z0-9_-][A-Za-z0-9_.-]*$",
        max_length=128,
        description="the job's id, where the submitter makes it: the same again is no second job. Of dots "
        "alone none can be asked for by a URL",
    )
    deadline_secs: Annotated[float, Field(gt=0)] | None = Field(
        None, description="the same as `deadline`, seconds"
    )
    queue_timeout_secs: Annotated[float, Field(gt=0)] | None = Field(
        None, description="the same as `queue_timeout`, seconds"
    )
    key: None = Field(None, exclude=True, description="never in a body: keys come in a header")

    @model_validator(mode="before")
    @classmethod
    def _lists(cls, given: Any) -> Any:
        """JSON has lists where an option is a tuple."""
        if not isinstance(given, dict):
            return given
        names = JobOptions.model_fields.keys() & given.keys()
        return given | {name: tuple(given[name]) for name in names if isinstance(given[name], list)}

    @model_validator(mode="after")
    def _one_of_two(self) -> JobSpec:
        for name in NOETHER_NAMES.values():
            ours, theirs = getattr(self, name), getattr(self, f"{name}_secs")
            if ours is not None and theirs is not None and ours != theirs:
                raise ValueError(f"{name} and {name}_secs are two names of one thing and differ")
        return self

    def options(self, base: JobOptions) -> JobOptions:
        """The job's options: those of `base`, with what the body says in their place. The end of its stream
        is kept in any case, so that it can be waited for.
        """
        said = {name: getattr(self, name) for name in self.model_fields_set & JobOptions.model_fields.keys()}
        for theirs, ours in NOETHER_NAMES.items():
            if getattr(self, theirs) is not None:
                said[ours] = getattr(self, theirs)
        said["stream"] = True if self.stream is True else "end"
        return base.model_copy(update=said)


def read_spec(raw: bytes, *, depth: int) -> JobSpec:
    """The body of a submission. RequestError names the field at fault."""
    body = parse_body(raw, depth)
    unknown = body.keys() - JobSpec.model_fields.keys()
    if unknown:
        name = min(unknown)[:80]
        known = ", ".join(field for field in JobSpec.model_fields if field != "key")
        raise RequestError(f"There is no field {name!r}", {"path": name, "expected": f"one of {known}"})
    try:
        return JobSpec.model_validate(body)
    except ValidationError as exc:
        path, reason = first_fault(exc)
        details = {"path": path[:200], "reason": reason[:500]}
        raise RequestError(f"The field {path.partition('.')[0]!r} is not usable", details) from None
