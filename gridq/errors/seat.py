"""A seat is at fault, or none is available; the stage itself is fine."""

from __future__ import annotations

from gridq.errors.base import GridError
from gridq.errors.request import RouteNotFound


class SeatError(GridError):
    """The seat is at fault, not the stage; the grid tries the stage on another seat.

    `details["retry_after"]`: seconds until this seat may be used again.
    """

    code = "seat.error"
    remedy = "Nothing, if another seat serves the queue; else read `reason` and repair the seat."


class SeatUnavailable(SeatError):
    """The seat's engine or API cannot be reached, or answered with a server error."""

    code = "seat.unavailable"
    remedy = "Check that the engine or API behind the seat runs."


class SeatUnreachable(SeatUnavailable):
    """No connection to the seat's endpoint could be opened, so it has received nothing of the request.

    The attempt does not count towards GRIDQ_MAX_ATTEMPTS.
    """

    code = "seat.unreachable"
    remedy = "Check the seat's url, and that its endpoint runs and can be reached from the worker's machine."


class SeatRateLimited(SeatError):
    """The seat's provider rejected the call because of its rate limit.

    `details["scope"]` is "model" if the provider says that the limit is the model's, not the account's.
    """

    code = "seat.rate_limited"
    remedy = "Wait for `retry_after`, set a limit for the seat, or add seats."

    @property
    def blames_model(self) -> bool:
        return self.details.get("scope") == "model"


class SeatDegraded(SeatError):
    """The seat is logged out, out of credit, or its key was rejected."""

    code = "seat.degraded"
    remedy = "Log in again, add credit or replace the key on the seat's machine."


class ModelUnavailable(SeatError):
    """The seat cannot serve this one model: its endpoint does not have it, or not for the seat's key."""

    code = "seat.model_unavailable"
    remedy = "Correct the seat's url or the model's name; `gridq seats` shows the models in cooldown."


class ModelInCooldown(ModelUnavailable):
    """The model is in cooldown at this seat, or another request is trying it. Nothing was sent, and the
    attempt does not count towards GRIDQ_MAX_ATTEMPTS.
    """

    code = "seat.model_in_cooldown"
    remedy = "Nothing: the request is tried again."


class SeatMemoryShort(ModelInCooldown):
    """The seat's device has not enough free memory for the model or stage now. Nothing was sent, and the
    attempt does not count towards GRIDQ_MAX_ATTEMPTS.
    """

    code = "seat.memory_short"
    remedy = "Nothing: another seat gets the request, or this one once memory is free."


class RequestRefused(SeatError):
    """The seat's endpoint refused the request, and did not say whether the request, the model or the key is
    at fault.
    """

    code = "seat.refused"
    remedy = "Nothing, if another seat serves the queue; else read `reason`."


class ChildDied(SeatError):
    """The child process that ran the stage died.

    A stage that this happens to twice is quarantined. `details["alone"]` is False if other stages ran in
    the same process: then the death counts as a lost attempt only.
    """

    code = "seat.child_died"
    remedy = "Read the worker's log; lack of memory is the usual cause."


class SeatInUse(GridError):
    """Another live worker already serves this seat."""

    code = "seat.in_use"
    remedy = "Stop that worker, or give this machine an id of its own."


class NoLiveSeat(GridError):
    """No live seat serves a capability that the graph needs."""

    code = "seat.none_live"
    remedy = "Start a worker whose seats serve it; `gridq workers` lists those that are live."

    awaited: tuple[str, ...] = ()
    """Queues of which one is enough, for which a refused job may wait (`gridq.seats.served_queues`).
    They stay in this process: they are not in the record.
    """


class DemandUnmet(NoLiveSeat):
    """Seats of the capability are live, but none has what the stage demands beyond it."""

    code = "seat.demand_unmet"
    remedy = "Ask for what the seats have, as `reason` says, or submit with wait_for_seat."


class SeatNotFound(RouteNotFound):
    """No live seat has this name."""

    code = "seat.not_found"
    remedy = "List the live seats with `gridq workers`."
