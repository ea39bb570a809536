"""Convert a gateway's JSON answers into the grid's own types.

Fields that this version does not know are ignored. Every `read_…` function raises GatewayUnreachable if the
answer does not have the shape that a gateway gives it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import wraps
from typing import Any, TypeVar

from gridq.errors import GatewayUnreachable, GridError, error_from_record
from gridq.jobs.waiting import Piece
from gridq.protocol.models import HistoryRow, Json
from gridq.protocol.states import JobState, StageState
from gridq.seats.registry import LiveSeat
from gridq.store import values
from gridq.views.jobs import JobSummary, JobView, StageView
from gridq.views.quarantine import Quarantined
from gridq.views.queues import QueueView

T = TypeVar("T")


def reject_malformed(read: Callable[[Any], T]) -> Callable[[Any], T]:
    """Decorate `read` so that an answer of another shape raises GatewayUnreachable."""

    @wraps(read)
    def checked(answer: Any) -> T:
        try:
            return read(answer)
        except (LookupError, TypeError, ValueError, AttributeError) as exc:
            raise GatewayUnreachable(
                "The answer is not one that a gateway of this version sends",
                {
                    "reason": f"{type(exc).__name__}: {exc}"[:200],
                    "fix": "correct the URL (GRIDQ_URL or --grid), or use the gateway's version of gridq",
                },
            ) from exc

    return checked


@reject_malformed
def read_job_id(answer: Any) -> str:
    """Return the id of the job that the answer is about."""
    return str(answer["job"])


@reject_malformed
def read_cancelled(answer: Any) -> bool:
    """Return whether the job was cancelled; False if it had ended before."""
    return bool(answer["cancelled"])


@reject_malformed
def read_state(answer: Any) -> JobState:
    return JobState(answer["state"])


@reject_malformed
def read_waits_for(answer: Any) -> str:
    """Return what the job waits for, in words."""
    return str(answer["waits_for"])


@reject_malformed
def read_result(answer: Any) -> Json:
    """Return the result of a job that has ended, or raise the GridError that ended it."""
    if JobState(answer["state"]) is not JobState.DONE:
        raise error_from_record(answer["error"])
    return answer["result"]["output"]


@reject_malformed
def parse_rows(answer: Any) -> list[HistoryRow]:
    """Return the rows of the job's history."""
    return [HistoryRow.model_validate(row) for row in answer["rows"]]


@reject_malformed
def read_view(answer: Any) -> JobView:
    """Return the state of the job and of its stages."""
    known = _select_fields(JobView, answer)
    known |= {"state": JobState(answer["state"]), "rows": parse_rows(answer)}
    return JobView(**known | {"stages": [_read_stage(stage) for stage in answer["stages"]]})


def _read_stage(answer: Any) -> StageView:
    known = _select_fields(StageView, answer) | {"state": StageState(answer["state"])}
    known = {name: tuple(value) if isinstance(value, list) else value for name, value in known.items()}
    return StageView(**known)


@reject_malformed
def read_job_page(answer: Any) -> tuple[list[JobSummary], str | None]:
    """Return one page of the list of jobs, and the cursor of the next page or None."""
    jobs = [
        JobSummary(**_select_fields(JobSummary, line) | {"state": JobState(line["state"])})
        for line in answer["jobs"]
    ]
    return jobs, answer["next"]


@reject_malformed
def read_piece(data: bytes) -> Piece:
    """Return the piece that a `piece` event carries as its data."""
    event = values.decode(data)
    return Piece(str(event["path"]), event["piece"])


@reject_malformed
def read_stream_error(data: bytes) -> GridError:
    """Return the error that an `error` event carries as its data."""
    return parse_error(values.decode(data))


def parse_error(body: Any) -> GridError:
    """Return the error in the body of a gateway's answer, of the class that has its code.

    Raises LookupError or TypeError if the body is not an error.
    """
    record = body["error"]
    code, message = record["code"], str(record["message"])
    # The request id leads to more in the gateway's log only for the gateway's own errors.
    omitted = {"code", "message"} if str(code).startswith("gateway.") else {"code", "message", "request_id"}
    details = {name: value for name, value in record.items() if name not in omitted}
    return error_from_record({"code": code, "message": message, "details": details})


@reject_malformed
def read_queues(answer: Any) -> list[QueueView]:
    return [QueueView(**_select_fields(QueueView, queue)) for queue in answer]


@reject_malformed
def read_seats(answer: Any) -> list[LiveSeat]:
    return [LiveSeat.model_validate(seat) for seat in answer]


@reject_malformed
def read_quarantined(answer: Any) -> list[Quarantined]:
    """Return the stages in quarantine."""
    return [Quarantined(**_select_fields(Quarantined, stage)) for stage in answer]


@reject_malformed
def read_changed(answer: Any) -> bool:
    """Return whether a release or a drop changed anything; False if it had been done before."""
    return not answer["before"]


def _select_fields(cls: Any, answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of `answer` whose names are fields of the dataclass `cls`."""
    names = {field.name for field in fields(cls)}
    return {name: value for name, value in answer.items() if name in names}
