"""The gateway cannot handle an HTTP request."""

from __future__ import annotations

from gridq.errors.base import GridError


class RequestError(GridError):
    """The request is malformed: a header, a query parameter, the path or the body."""

    code = "request.invalid"
    remedy = "Correct what `path` names."


class RouteNotFound(RequestError):
    """The gateway has nothing at this path."""

    code = "request.not_found"
    remedy = "Check the path against the gateway's `/openapi.json`."


class MethodNotAllowed(RequestError):
    """The path does not support this HTTP method."""

    code = "request.method"
    remedy = "Use one of the methods in the `Allow` header."


class NotSupported(RequestError):
    """The path belongs to a model API, but gridq does not serve it."""

    code = "request.not_supported"
    remedy = "Send the request to the vendor."


class HeadersTooLarge(RequestError):
    """The request has too many headers, or too long ones."""

    code = "request.headers"
    remedy = "Send fewer or shorter headers."


class EncodingRefused(RequestError):
    """The request's body is compressed, which the gateway does not accept."""

    code = "request.encoding"
    remedy = "Send the body without `Content-Encoding`."


class RequestTooSlow(RequestError):
    """The request's body did not arrive in time."""

    code = "request.timeout"
    remedy = "Send the body faster, or check the connection."


class WorkersFull(GridError):
    """The grid already has the maximum number of workers enrolled over HTTP."""

    code = "workers.full"
    remedy = "Remove one, or run a `gridq worker` beside the models."


class GatewayBusy(GridError):
    """The gateway holds as many large request bodies as its memory allows."""

    code = "gateway.busy"
    remedy = "Send the request again in a few seconds."


class GatewayStops(GridError):
    """The gateway is shutting down, and ends what is still open."""

    code = "gateway.stopping"
    remedy = "Send the same request again; another gateway answers it."


class GatewayFault(GridError):
    """A fault in the gateway itself."""

    code = "gateway.internal"
    remedy = "Look up the request's id in the gateway's log, and report the traceback."
