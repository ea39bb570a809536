"""Which seat a worker serves and which queues it listens to: from `--seat` and `-Q`, or one clear error."""

from __future__ import annotations

from collections.abc import Sequence

from gridq.errors import ConfigError
from gridq.protocol import queue_names
from workers.machine.seats import ProbeResult, Seat


def choose_seat(found: ProbeResult, seat: str | None, asked: Sequence[str]) -> tuple[Seat, tuple[str, ...]]:
    """(the seat, the capabilities to serve).

    `seat` is `--seat`'s name, `asked` the queues of `-Q`. Without `seat`, the one seat there is, or the one
    seat that serves the asked queues; a queue that the seat does not serve is an error.
    """
    if seat is not None:
        [chosen] = found.select([seat])
    else:
        able = [each for each in found.seats if all(name in each.queues for name in asked)]
        if asked and not able:
            raise ConfigError(
                "No seat of this machine serves " + ", ".join(asked),
                {
                    "path": "-Q",
                    "expected": "queues of one seat: " + "; ".join(_served(each) for each in found.seats),
                },
            )
        if len(able) > 1:
            raise ConfigError(
                "This machine has several seats" + (" that serve them" if asked else ""),
                {
                    "path": "--seat",
                    "expected": "one of " + ", ".join(each.name for each in able),
                    "fix": f"add --seat {able[0].name}",
                },
            )
        chosen = able[0]
    for name in asked:
        if name not in chosen.queues:
            raise ConfigError(
                f"The seat {chosen.name!r} does not serve {queue_names.check_queue_name(name)}",
                {"path": "-Q", "expected": "some of " + ", ".join(chosen.queues)},
            )
    return chosen, tuple(name for name in chosen.queues if not asked or name in asked)


def _served(seat: Seat) -> str:
    return f"{seat.name} serves {', '.join(seat.queues)}"
