"""The caller is unknown, or is not allowed to do this."""

from __future__ import annotations

from gridq.errors.base import GridError


class AuthError(GridError):
    """The API key does not allow this request."""

    code = "auth.refused"
    remedy = "Use a key that is allowed to do this, or ask the operator for one."


class KeyMissing(AuthError):
    """The grid has API keys, and the request has none."""

    code = "auth.key_missing"
    remedy = "Set GRIDQ_KEY, or send the header `Authorization: Bearer <key>`."


class KeyInvalid(AuthError):
    """The grid does not know this API key.

    The error does not say whether the id or the secret is wrong.
    """

    code = "auth.key_invalid"
    remedy = "Check that you copied the whole key, and that it belongs to this grid."


class KeyRevoked(AuthError):
    """The API key was revoked, or replaced by a newer one."""

    code = "auth.key_revoked"
    remedy = "Use the newer key, or create one with `gridq keys create`."


class KeyScopeMissing(AuthError):
    """The API key is valid but lacks the scope that this request needs."""

    code = "auth.scope"
    remedy = "Use a key with that scope, or create one with `gridq keys create`."


class TooManyAttempts(AuthError):
    """Too many wrong keys or tokens came from this address; the gateway rejects all attempts for a while.

    `details["retry_after"]`: seconds until the next attempt is checked.
    """

    code = "auth.attempts"
    remedy = "Wait until `retry_after` has passed, then try again with the right key."


class OriginRefused(AuthError):
    """The gateway does not accept requests from this web page, proxy or host name."""

    code = "auth.origin"
    remedy = "Use an API key, and add the page's origin to GRIDQ_GATEWAY_ALLOWED_ORIGINS."


class GatewayOpen(AuthError):
    """The gateway listens beyond this machine, but the grid has no API keys."""

    code = "auth.open"
    remedy = "Create a key with `gridq keys create`, or let the gateway listen on 127.0.0.1."


class KeyNotFound(GridError):
    """No API key has this id."""

    code = "auth.key_not_found"
    remedy = "List the ids with `gridq keys list`."
