"""What an endpoint lists as its models, asked at a probe, all endpoints at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from pydantic import ValidationError

from gridq.errors import GridError
from workers.profiles.llm.capability import LlmSeat, RemoteModel
from workers.profiles.llm.credentials import api_of

LISTING_SECONDS = 1.5
"""A probe has two seconds; endpoints whose models are not declared are asked for them, all at once, this
long.
"""


def listed(seats: Sequence[tuple[LlmSeat, str | None]]) -> dict[str, tuple[RemoteModel, ...] | str]:
    """What each seat's endpoint lists, or in words why not. Daemon threads: a name server that hangs costs
    nothing but time.
    """
    answers: dict[str, tuple[RemoteModel, ...] | str] = {}

    def ask(seat: LlmSeat, key: str | None) -> None:
        api = api_of(seat, key)
        try:
            names = api.models(LISTING_SECONDS)
            answers[seat.name] = tuple(RemoteModel(name=name) for name in names if name.lower() != "any")
        except (GridError, ValidationError) as error:
            answers[seat.name] = error.message if isinstance(error, GridError) else "a model without a name"
        finally:
            api.close()

    threads = [threading.Thread(target=ask, args=each, daemon=True) for each in seats]
    until = time.monotonic() + LISTING_SECONDS
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    return {seat.name: answers.get(seat.name, "no answer in time") for seat, _ in seats}
