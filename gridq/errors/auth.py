"""Who submits is not known, or may not."""

from __future__ import annotations

from gridq.errors.base import GridError


class AuthError(GridError):
    """The API key does not let its bearer do what is asked."""

    code = "auth.refused"


class KeyMissing(AuthError):
    """The grid has API keys, and none was given."""

    code = "auth.key_missing"


class KeyInvalid(AuthError):
    """The API key is none of this grid's. Whether its id or its secret is wrong is not told."""

    code = "auth.key_invalid"


class KeyRevoked(AuthError):
    """The API key has been revoked, or replaced by a newer one."""

    code = "auth.key_revoked"


class KeyScopeMissing(AuthError):
    """The API key is good, but not for this."""

    code = "auth.scope"


class TooManyAttempts(AuthError):
    """Too many wrong keys came from this address; none is looked at for a while.

    `details["retry_after"]`: seconds until the next one is.
    """

    code = "auth.attempts"


class OriginRefused(AuthError):
    """A page of this origin may not use the key, or a grid that asks for none."""

    code = "auth.origin"


class GatewayOpen(AuthError):
    """The gateway listens beyond this machine, and the grid asks for no key: nobody is let in."""

    code = "auth.open"


class KeyNotFound(GridError):
    """No API key has this id."""

    code = "auth.key_not_found"
