"""Ask endpoints for their lists of models during a probe, all at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from pydantic import ValidationError

from gridq.errors import GridError
from workers.profiles.llm.capability import LlmSeat, RemoteModel
from workers.profiles.llm.credentials import make_client

LISTING_SECONDS = 1.5
"""Time for all lists together. A probe has two seconds."""


def list_models(seats: Sequence[tuple[LlmSeat, str | None]]) -> dict[str, tuple[RemoteModel, ...] | str]:
    """Return the models that each seat's endpoint lists, or the reason why it lists none, by seat name.

    `seats` are pairs of a seat and its key. The threads are daemons, so that a hanging name server cannot
    keep the process alive.
    """
    results: dict[str, tuple[RemoteModel, ...] | str] = {}

    def ask(seat: LlmSeat, key: str | None) -> None:
        client = make_client(seat, key)
        try:
            names = client.list_models(LISTING_SECONDS)
            results[seat.name] = tuple(RemoteModel(name=name) for name in names if name.lower() != "any")
        except (GridError, ValidationError) as error:
            results[seat.name] = error.message if isinstance(error, GridError) else "a model without a name"
        finally:
            client.close()

    threads = [threading.Thread(target=ask, args=each, daemon=True) for each in seats]
    deadline = time.monotonic() + LISTING_SECONDS
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return {seat.name: results.get(seat.name, "no answer in time") for seat, _ in seats}
