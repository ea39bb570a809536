"""The server cannot be used."""

from __future__ import annotations

from gridq.errors.base import GridError


class BrokerError(GridError):
    """The broker cannot be used."""

    code = "broker.error"


class BrokerUnreachable(BrokerError):
    """Nothing answers at the broker's address."""

    code = "broker.unreachable"


class GatewayUnreachable(BrokerUnreachable):
    """No gateway answers at the client's URL, or what answers there is none.

    Who bears that a grid's server is away bears this too. `details`: `path`, the URL.
    """

    code = "gateway.unreachable"


class BrokerRefused(BrokerError):
    """The broker refused the login or a command."""

    code = "broker.refused"


class BrokerTooOld(BrokerError):
    """The broker is older than Redis 7.0 or Valkey 7.2."""

    code = "broker.too_old"


class BrokerIsCluster(BrokerError):
    """The broker is a Redis Cluster, which Celery's transport cannot use."""

    code = "broker.is_cluster"


class BrokerEvicts(BrokerError):
    """The broker throws away what it holds when its memory is full: jobs would be lost without a word."""

    code = "broker.evicts"


class SchemaMismatch(BrokerError):
    """The grid's data are of another schema than this program's: another version of gridq runs it.

    `details`: `grid`, the schema of the data there, `program`, this one's.
    """

    code = "broker.schema"


class GridFull(GridError):
    """The broker's memory is nearly used up: no new job is taken until those that run have made room.

    `details`: `used` and `limit` in bytes, `retry_after` in seconds.
    """

    code = "grid.full"
