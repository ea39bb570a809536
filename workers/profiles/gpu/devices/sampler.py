"""Read the device of a seat every few seconds, beside the heartbeat."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from workers.profiles.gpu.devices import discovery
from workers.profiles.gpu.devices.device import DeviceError, DriverTimeout, Reading

log = logging.getLogger(__name__)

SAMPLE_SECONDS = 5.0

WEDGED_SECONDS = 15.0
"""A driver that has not answered for so long is wedged. One that is busy with a load may miss a sample."""


class Sampler:
    """Reads one device on a thread of its own. `reading` is the last one, None before the first.

    `fault` says why the device cannot work: it is gone, its driver does not work or does not answer. It is
    empty while the device works, and again once it does. `on_change` is called after each change of it, on
    the sampler's thread. Reading the attributes never blocks.
    """

    def __init__(
        self,
        backend: str,
        uuid: str | None,
        on_change: Callable[[], None] = lambda: None,
        seconds: float = SAMPLE_SECONDS,
    ) -> None:
        self.reading: Reading | None = None
        self.fault = ""
        self._backend = backend
        self._uuid = uuid
        self._on_change = on_change
        self._seconds = seconds
        self._answered_at = time.monotonic()
        self._stopped = threading.Event()
        threading.Thread(target=self._sample_repeatedly, name="gridq-sampler", daemon=True).start()

    def stop(self) -> None:
        """Take no more samples. Does not wait for one that is under way."""
        self._stopped.set()

    def _sample_repeatedly(self) -> None:
        while True:
            self._sample()
            if self._stopped.wait(self._seconds):
                return

    def _sample(self) -> None:
        try:
            self.reading = discovery.read_device(self._backend, self._uuid)
        except DriverTimeout as exc:
            if time.monotonic() - self._answered_at >= WEDGED_SECONDS:
                self._report(str(exc))
            return
        except DeviceError as exc:
            self._report(str(exc))
        except Exception as exc:  # a reading that fails must not end the thread
            log.exception("the device could not be read")
            self._report(f"the device cannot be read: {type(exc).__name__}: {exc}")
        else:
            self._report("")
        self._answered_at = time.monotonic()

    def _report(self, fault: str) -> None:
        changed = bool(fault) != bool(self.fault)
        self.fault = fault
        if not changed:
            return
        if fault:
            log.warning("the device does not work: %s", fault)
        else:
            log.info("the device works again")
        try:
            self._on_change()
        except Exception:  # a server that is away must not end the thread; the seat asks it again by itself
            log.exception("the change of the device could not be reported")
