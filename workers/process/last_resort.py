"""Leave the queues of the last resort to the other seats of the grid, as long as one of them serves them.

A small model that only shows that a grid works must not answer for `any` where a better one could. Its seat
advertises such queues (`Advertisement.last_resort`), looks twice a second who else serves them, and offers
them again once nobody does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from redis import Redis

from gridq.process.periodic import PeriodicThread
from gridq.seats import registry
from gridq.store.keys import Keys

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.5


class LastResort:
    """The queues that `seat` serves only while no other seat of the grid does.

    `on_change` is called, on a thread, when `served_elsewhere` has changed.
    """

    def __init__(
        self, client: Redis, keys: Keys, seat: str, queues: Collection[str], on_change: Callable[[], None]
    ) -> None:
        self.queues = tuple(queues)
        self.served_elsewhere: frozenset[str] = frozenset()
        """Those that other seats serve now."""
        self._client, self._keys, self._seat = client, keys, seat
        self._on_change = on_change
        self._thread = PeriodicThread(f"last resort {seat}", LOOK_SECONDS, self.look)

    def start(self) -> None:
        """Look from time to time. Does nothing for a seat without such queues."""
        if self.queues:
            self._thread.start()

    def stop(self) -> None:
        self._thread.stop()

    def look(self) -> None:
        """Look now."""
        served = self._find_served()
        if served != self.served_elsewhere:
            log.info(
                "seat %s: others serve %s", self._seat, " and ".join(sorted(served)) or "none of its queues"
            )
            self.served_elsewhere = served
            self._on_change()

    def _find_served(self) -> frozenset[str]:
        return frozenset(
            queue
            for queue in self.queues
            if registry.is_served_by_others(self._client, self._keys, queue, self._seat)
        )
