"""Whether the client of a request is still there."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from starlette.types import Receive


class Presence:
    """Within `with Presence(receive) as client`, whatever the task waits for ends with CancelledError as soon
    as the client goes away; `client.gone` tells that from any other cause. The body has been read before.
    """

    def __init__(self, receive: Receive) -> None:
        self.gone = False
        self._receive = receive

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._listening = asyncio.ensure_future(self._listen())
        return self

    async def _listen(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.gone = True
        self._task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listening.cancel()

    def forgive(self) -> None:
        """The task has met the client's going away, and goes on."""
        self._task.uncancel()
