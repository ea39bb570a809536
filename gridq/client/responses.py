"""What a gateway's answers are as the grid's own types; what a newer gateway says beside is passed over."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import wraps
from typing import Any, TypeVar

from gridq.errors import GatewayUnreachable, GridError, error_from_record
from gridq.jobs.waiting import Piece
from gridq.protocol.models import Json, Row
from gridq.protocol.states import JobState, StageState
from gridq.seats.registry import LiveSeat
from gridq.store import values
from gridq.views.jobs import JobSummary, JobView, StageView
from gridq.views.quarantine import Quarantined
from gridq.views.queues import QueueView

T = TypeVar("T")


def of_gateway(read: Callable[[Any], T]) -> Callable[[Any], T]:
    """Have `read` raise GatewayUnreachable where an answer is none that a gateway gives."""

    @wraps(read)
    def checked(answer: Any) -> T:
        try:
            return read(answer)
        except (LookupError, TypeError, ValueError, AttributeError) as exc:
            raise GatewayUnreachable(
                "What answers is no gateway that this client understands",
                {
                    "reason": f"{type(exc).__name__}: {exc}"[:200],
                    "fix": "correct the URL (GRIDQ_URL or --grid), or use the gateway's version of gridq",
                },
            ) from exc

    return checked


@of_gateway
def accepted(answer: Any) -> str:
    """The id of the job that a submission is."""
    return str(answer["job"])


@of_gateway
def cancelled(answer: Any) -> bool:
    """Whether a job was cancelled: False where it had ended."""
    return bool(answer["cancelled"])


@of_gateway
def job(answer: Any) -> str:
    """Which job it is."""
    return str(answer["job"])


@of_gateway
def state(answer: Any) -> JobState:
    """Where a job stands."""
    return JobState(answer["state"])


@of_gateway
def waits_for(answer: Any) -> str:
    """What a job waits for."""
    return str(answer["waits_for"])


def outcome(answer: Any) -> Json:
    """The answer of a job that has ended; raises the GridError that ended it."""
    if state(answer) is not JobState.DONE:
        raise _error(answer)
    return _output(answer)


@of_gateway
def _error(answer: Any) -> Exception:
    return error_from_record(answer["error"])


@of_gateway
def _output(answer: Any) -> Json:
    return answer["result"]["output"]


@of_gateway
def rows(answer: Any) -> list[Row]:
    """The lines of a job's history."""
    return [Row.model_validate(row) for row in answer["rows"]]


@of_gateway
def view(answer: Any) -> JobView:
    """Where a job and its stages stand."""
    given = _known(JobView, answer)
    given |= {"state": JobState(answer["state"]), "rows": rows(answer)}
    return JobView(**given | {"stages": [_stage(each) for each in answer["stages"]]})


def _stage(answer: Any) -> StageView:
    given = _known(StageView, answer) | {"state": StageState(answer["state"])}
    given = {name: tuple(told) if isinstance(told, list) else told for name, told in given.items()}
    return StageView(**given)


@of_gateway
def page(answer: Any) -> tuple[list[JobSummary], str | None]:
    """Jobs of a list, and where its next page begins; None: there is none."""
    lines = answer["jobs"]
    found = [JobSummary(**_known(JobSummary, line) | {"state": JobState(line["state"])}) for line in lines]
    return found, answer["next"]


@of_gateway
def piece(data: bytes) -> Piece:
    """A piece of an answer, by its event's data."""
    said = values.decode(data)
    return Piece(str(said["path"]), said["piece"])


@of_gateway
def fault(data: bytes) -> GridError:
    """The error that ends a stream, by its event's data."""
    return error_of(values.decode(data))


def error_of(body: Any) -> GridError:
    """The error of a gateway's answer, of the class that has its code. LookupError, TypeError: it is none."""
    said = body["error"]
    code, message = said["code"], str(said["message"])
    # By its id the gateway's log has more of the gateway's own fault; of others it tells nothing more.
    own = {"code", "message"} if str(code).startswith("gateway.") else {"code", "message", "request_id"}
    details = {name: value for name, value in said.items() if name not in own}
    return error_from_record({"code": code, "message": message, "details": details})


@of_gateway
def queues(answer: Any) -> list[QueueView]:
    """The queues of capabilities."""
    return [QueueView(**_known(QueueView, each)) for each in answer]


@of_gateway
def seats(answer: Any) -> list[LiveSeat]:
    """The live seats."""
    return [LiveSeat.model_validate(each) for each in answer]


@of_gateway
def quarantined(answer: Any) -> list[Quarantined]:
    """The stages in quarantine."""
    return [Quarantined(**_known(Quarantined, each)) for each in answer]


@of_gateway
def acted(answer: Any) -> bool:
    """Whether an operator's word on a stage was news."""
    return not answer["before"]


def _known(cls: Any, answer: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the answer's values that are fields of the dataclass `cls`."""
    names = {each.name for each in fields(cls)}
    return {name: value for name, value in answer.items() if name in names}
