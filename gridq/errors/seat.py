"""A seat cannot do what is asked, or there is none; the stage itself is not at fault."""

from __future__ import annotations

from gridq.errors.base import GridError
from gridq.errors.request import RouteNotFound


class SeatError(GridError):
    """The seat, not the stage, is at fault: the stage is tried again on another seat.

    `details["retry_after"]`, in seconds, says when this seat may be asked again.
    """

    code = "seat.error"


class SeatUnavailable(SeatError):
    """The seat's engine or endpoint cannot be reached or answered with a server error."""

    code = "seat.unavailable"


class SeatRateLimited(SeatError):
    """The seat's provider refused by its rate limit."""

    code = "seat.rate_limited"


class SeatDegraded(SeatError):
    """The seat is logged out, out of credit or its key was refused."""

    code = "seat.degraded"


class ChildDied(SeatError):
    """The child process that ran the stage died under it; twice on one stage and the stage is quarantined.

    `details["alone"]` False: other stages ran in that process too, so the death counts as a loss only.
    """

    code = "seat.child_died"


class ModelFileError(SeatError):
    """A model's file is missing, corrupt or does not match its checksum."""

    code = "model.file"


class SeatInUse(GridError):
    """The seat is already served by another live worker."""

    code = "seat.in_use"


class NoLiveSeat(GridError):
    """No live seat serves a capability that the graph needs."""

    code = "seat.none_live"


class SeatNotFound(RouteNotFound):
    """No live seat is called so."""

    code = "seat.not_found"
