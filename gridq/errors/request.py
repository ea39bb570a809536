"""An HTTP request cannot be taken as it came, whatever it asks for."""

from __future__ import annotations

from gridq.errors.base import GridError


class RequestError(GridError):
    """The request is malformed: a header, a query, a path or the form of its body."""

    code = "request.invalid"


class RouteNotFound(RequestError):
    """Nothing is at this path."""

    code = "request.not_found"


class MethodNotAllowed(RequestError):
    """The path is there, but not for this method."""

    code = "request.method"


class HeadersTooLarge(RequestError):
    """The request's headers are too many or too long."""

    code = "request.headers"


class EncodingRefused(RequestError):
    """The body is encoded; the gateway takes it as it is."""

    code = "request.encoding"


class RequestTooSlow(RequestError):
    """The body did not come in time."""

    code = "request.timeout"


class WorkersFull(GridError):
    """As many workers are enrolled over HTTP as a grid takes."""

    code = "workers.full"


class GatewayStops(GridError):
    """The gateway stops, and gives up what is still open; the same request does at another one."""

    code = "gateway.stopping"


class GatewayFault(GridError):
    """A fault of the gateway itself; its log has the traceback under the request's id."""

    code = "gateway.internal"
