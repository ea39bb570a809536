"""The server cannot be used."""

from __future__ import annotations

from gridq.errors.base import GridError


class BrokerError(GridError):
    """The broker cannot be used."""

    code = "broker.error"


class BrokerUnreachable(BrokerError):
    """Nothing answers at the broker's address."""

    code = "broker.unreachable"


class BrokerRefused(BrokerError):
    """The broker refused the login or a command."""

    code = "broker.refused"


class BrokerTooOld(BrokerError):
    """The broker is older than Redis 7.0 or Valkey 7.2."""

    code = "broker.too_old"


class BrokerIsCluster(BrokerError):
    """The broker is a Redis Cluster, which Celery's transport cannot use."""

    code = "broker.is_cluster"
