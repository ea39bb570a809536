"""`gridq worker`: one worker for each seat of this machine, kept running until it is told to stop."""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from typing import Any

from gridq.config.home import GRID, WORKER, held
from gridq.config.settings import Settings, settings
from gridq.errors import GridError
from gridq.profiles import profile
from gridq.store.connection import connect
from gridq.store.readiness import await_server
from workers.machine.probing import probe_machine
from workers.machine.run_records import make_already_running_error
from workers.machine.seats import ProbeResult, Seat
from workers.supervisor.deployment import STOP_SIGNALS, Deployment


def run(
    config: Settings,
    names: Sequence[str],
    *,
    say: Callable[[str], None],
    found: Callable[[ProbeResult], None],
    ready: Callable[[dict[str, Any]], None],
) -> None:
    """Serve the seats called `names`, or all, until a signal: SIGINT or SIGTERM drains and ends, SIGHUP reads
    the settings and the seats file again.

    `found` gets what the probes found, `ready` what runs once it is live. AlreadyRunning: a `gridq worker` or
    `gridq up` has this home. BrokerError: the server cannot be used.
    """
    if held(config.home, GRID):
        raise make_already_running_error(config.home, GRID)
    with connect(config.broker_url.get_secret_value(), name="gridq-worker", retry=False) as look:
        await_server(look, say)
    with Deployment(config, WORKER, say) as machine:
        seats = probe_machine(config, profile.load(config.profiles))
        found(seats)
        machine.missing = seats.missing
        for seat in seats.select(names):
            machine.add_seat(seat)
        came = machine.wait_until_live()
        if not came:
            ready(machine.status())
        while not any(number in STOP_SIGNALS for number in came):
            if signal.SIGHUP in came:
                reload(machine, names)
            came = machine.keep()
        say("Stopping: workers finish what they run; the same signal again is quicker")


def reload(machine: Deployment, names: Sequence[str]) -> None:
    """Read settings and seats again: start, stop and start anew what has changed, and leave the rest alone.

    Where they cannot be used, that is said, and all goes on as it was.
    """
    settings.cache_clear()
    try:
        config = settings()
        found = probe_machine(config, profile.load(config.profiles))
        wanted = {seat.name: seat for seat in found.select(names)}
    except GridError as exc:
        machine.say(f"Not reloaded, all goes on as it was: {exc}")
        return
    all_anew = config.model_dump() != machine.config.model_dump()
    machine.configure(config)
    machine.missing = found.missing
    done: dict[str, list[str]] = {"started": [], "stopped": [], "started anew": []}
    for part, seat in machine.seats().items():
        if seat.name not in wanted:
            machine.supervisor.remove(part)
            done["stopped"].append(seat.name)
        elif all_anew or _differ(seat, wanted[seat.name]) or machine.supervisor.children[part].given_up:
            machine.replace_seat(wanted[seat.name])
            done["started anew"].append(seat.name)
    served = {seat.name for seat in machine.seats().values()}
    for name in wanted.keys() - served:
        machine.replace_seat(wanted[name])  # it may still be stopping
        done["started"].append(name)
    machine.note()
    told = [f"{what} {', '.join(sorted(who))}" for what, who in done.items() if who]
    machine.say(f"Reloaded: {'; '.join(told) or 'nothing has changed'}")


def _differ(one: Seat, other: Seat) -> bool:
    return (one.offer, one.queues, one.terms) != (other.offer, other.queues, other.terms)
