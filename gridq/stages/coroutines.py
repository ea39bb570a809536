"""A coroutine run from a slot's thread: it ends when the stage is cancelled, whatever it waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from gridq.errors import StageError
from gridq.profiles.profile import StageContext

T = TypeVar("T")


def run_coroutine(work: Coroutine[Any, Any, T], context: StageContext) -> T:
    """The result of `work`, run in an event loop of its own; JobCancelled where `context` was cancelled."""

    async def main() -> T:
        loop = asyncio.get_running_loop()
        task = asyncio.ensure_future(work)

        def cancel() -> None:
            # The context outlives the loop: a later cancellation finds it closed, and has nothing to end.
            if not loop.is_closed():
                try:
                    loop.call_soon_threadsafe(task.cancel)
                except RuntimeError:
                    return

        context.on_cancel(cancel)
        return await task

    try:
        return asyncio.run(main())
    except asyncio.CancelledError:
        context.check()
        raise StageError("The stage cancelled itself", {"reason": "asyncio.CancelledError"}) from None
