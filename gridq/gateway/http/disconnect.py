"""Cancel the work for a request when its client disconnects."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from starlette.types import Receive


class DisconnectWatch:
    """Cancel the current task as soon as the client disconnects: `with DisconnectWatch(receive) as client`.

    `client.disconnected` tells this cancellation from any other. Read the request body before.
    """

    def __init__(self, receive: Receive) -> None:
        self.disconnected = False
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
        self.disconnected = True
        self._task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listening.cancel()

    def uncancel(self) -> None:
        """Clear the cancellation, so that the task can go on."""
        self._task.uncancel()
