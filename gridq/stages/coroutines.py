"""Run coroutines from a slot's thread, and end them when the stage is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from gridq.errors import StageError
from gridq.profiles.profile import StageContext

T = TypeVar("T")


def run_coroutine(work: Coroutine[Any, Any, T], context: StageContext) -> T:
    """Run `work` in an event loop of its own and return its result.

    Raises JobCancelled if `context` is cancelled.
    """

    async def main() -> T:
        loop = asyncio.get_running_loop()
        task = asyncio.ensure_future(work)

        def cancel() -> None:
            # The context outlives the loop; after the loop is closed there is nothing to cancel.
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
