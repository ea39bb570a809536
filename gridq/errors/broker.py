"""The Redis or Valkey server, or the gateway in front of it, cannot be used."""

from __future__ import annotations

from gridq.errors.base import GridError


class BrokerError(GridError):
    """The server failed in an unexpected way."""

    code = "broker.error"
    remedy = "Read `reason`, then the log of the Redis or Valkey server."


class BrokerUnreachable(BrokerError):
    """Nothing answers at the server's address."""

    code = "broker.unreachable"
    remedy = "Check GRIDQ_BROKER_URL, and that the server runs and can be reached from here."


class GatewayUnreachable(BrokerUnreachable):
    """No gateway answers at the client's URL.

    It is a BrokerUnreachable, so code that tolerates an unreachable server tolerates this too. `details`:
    `path`, the URL.
    """

    code = "gateway.unreachable"
    remedy = "Check GRIDQ_URL, and that a gateway runs there."


class BrokerRefused(BrokerError):
    """The server rejected the login or a command."""

    code = "broker.refused"
    remedy = "Correct the user and password, the server's ACL, or its memory limit, as `reason` says."


class BrokerTooOld(BrokerError):
    """The server is older than Redis 7.0 or Valkey 7.2."""

    code = "broker.too_old"
    remedy = "Upgrade the server."


class BrokerIsCluster(BrokerError):
    """The server is a Redis Cluster, which Celery's transport cannot use."""

    code = "broker.is_cluster"
    remedy = "Use a single server, or one with replicas and Sentinel."


class BrokerEvicts(BrokerError):
    """The server is set to evict keys when its memory is full, which would lose jobs silently."""

    code = "broker.evicts"
    remedy = "Set the server's `maxmemory-policy` to `noeviction`."


class SchemaMismatch(BrokerError):
    """The grid's data were written by a version of gridq with another schema.

    `details`: `grid`, the schema of the data; `program`, the schema of this program.
    """

    code = "broker.schema"
    remedy = "Install the same version of gridq on every machine."


class GridFull(GridError):
    """The server's memory is nearly used up, so the grid takes no new job.

    `details`: `used` and `limit` in bytes, `retry_after` in seconds.
    """

    code = "grid.full"
    remedy = "Submit again after `retry_after`, or raise the server's `maxmemory`."
