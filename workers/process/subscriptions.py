"""Choose the seat that a worker serves and its queues, from `--seat` and `-Q`."""

from __future__ import annotations

from collections.abc import Sequence

from gridq.errors import ConfigError
from gridq.protocol import queue_names
from workers.machine.seats import ProbeResult, Seat


def choose_seat(found: ProbeResult, name: str | None, queues: Sequence[str]) -> tuple[Seat, tuple[str, ...]]:
    """Return the seat and the queues to serve.

    `name`: the value of `--seat`; None: the only seat of this machine, or the only one that serves `queues`.
    `queues`: the value of `-Q`; empty: all queues of the seat. ConfigError: there is no such seat, there are
    several, or it does not serve a queue.
    """
    if name is not None:
        [chosen] = found.select([name])
    else:
        able = [each for each in found.seats if all(queue in each.queues for queue in queues)]
        if queues and not able:
            raise ConfigError(
                "No seat of this machine serves " + ", ".join(queues),
                {
                    "path": "-Q",
                    "expected": "queues of one seat: " + "; ".join(_describe(each) for each in found.seats),
                },
            )
        if len(able) > 1:
            raise ConfigError(
                "This machine has several seats" + (" that serve them" if queues else ""),
                {
                    "path": "--seat",
                    "expected": "one of " + ", ".join(each.name for each in able),
                    "fix": f"add --seat {able[0].name}",
                },
            )
        chosen = able[0]
    for queue in queues:
        if queue not in chosen.queues:
            raise ConfigError(
                f"The seat {chosen.name!r} does not serve {queue_names.check_queue_name(queue)}",
                {"path": "-Q", "expected": "some of " + ", ".join(chosen.queues)},
            )
    return chosen, tuple(queue for queue in chosen.queues if not queues or queue in queues)


def _describe(seat: Seat) -> str:
    return f"{seat.name} serves {', '.join(seat.queues)}"
