"""`gridq worker`: run a worker for each seat of this machine."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gridq.config.home import GRID_RECORD, WORKER_RECORD, is_locked, read_running_record
from gridq.config.settings import Settings, settings
from gridq.errors import GridError
from gridq.profiles import profile
from gridq.store.connection import connect
from gridq.store.readiness import wait_for_server
from workers.machine.probing import probe_machine
from workers.machine.run_records import make_already_running_error
from workers.machine.seats import ProbeResult, Seat
from workers.supervisor.announced_seats import AnnouncedSeats
from workers.supervisor.deployment import RELOAD_SIGNAL, STOP_SIGNALS, Deployment
from workers.supervisor.model_sharing import update_mirror


def run(
    config: Settings,
    names: Sequence[str],
    *,
    report: Callable[[str], None],
    on_found: Callable[[ProbeResult], None],
    on_ready: Callable[[dict[str, Any]], None],
) -> None:
    """Serve the seats called `names`, or all, until a signal. SIGINT and SIGTERM drain and stop, SIGHUP
    reloads the settings and the seats file.

    `on_found` gets the result of the probes, `on_ready` the status once all seats are live. AlreadyRunning: a
    `gridq worker` or `gridq up` runs in this home. BrokerError: the server cannot be used.
    """
    if is_locked(config.home, GRID_RECORD):
        raise make_already_running_error(config.home, GRID_RECORD)
    with connect(config.get_broker_url(), name="gridq-worker", retry=False) as client:
        wait_for_server(client, report)
    with Deployment(config, WORKER_RECORD, report) as deployment:
        seats = probe_machine(config, profile.load_profiles(config.profiles))
        on_found(seats)
        deployment.missing = seats.missing
        for seat in seats.select(names):
            deployment.add_seat(seat)
        update_mirror(deployment)
        received = deployment.wait_until_live()
        if not received:
            on_ready(deployment.read_status())
        announced = AnnouncedSeats(deployment, names)
        announced.start()
        while not any(number in STOP_SIGNALS for number in received):
            announced.update()
            if signal.SIGHUP in received or RELOAD_SIGNAL in received:
                reload_seats(deployment, names)
            received = deployment.run_once()
        report("Stopping: workers finish their stages. Repeat the signal to stop at once")


def reload_seats(deployment: Deployment, names: Sequence[str]) -> None:
    """Reload the settings and the seats file: start, stop and restart the workers that this concerns.

    If they are invalid, report it and change nothing.
    """
    settings.cache_clear()
    try:
        config = settings()
        found = probe_machine(config, profile.load_profiles(config.profiles))
        wanted = {seat.name: seat for seat in found.select(names)}
    except GridError as exc:
        deployment.report(f"Not reloaded, nothing has changed: {exc}")
        return
    restart_all = config.model_dump() != deployment.config.model_dump()
    deployment.configure(config)
    deployment.missing = found.missing
    update_mirror(deployment, restart=restart_all)
    done: dict[str, list[str]] = {"started": [], "stopped": [], "restarted": []}
    for part, seat in deployment.list_seats().items():
        if seat.name not in wanted:
            deployment.supervisor.remove(part)
            done["stopped"].append(seat.name)
        elif (
            restart_all
            or _differ(seat, wanted[seat.name])
            or deployment.supervisor.children[part].gave_up_reason
        ):
            deployment.replace_seat(wanted[seat.name])
            done["restarted"].append(seat.name)
    served = {seat.name for seat in deployment.list_seats().values()}
    for name in wanted.keys() - served:
        deployment.replace_seat(wanted[name])  # it may still be stopping
        done["started"].append(name)
    deployment.write_record()
    changes = [f"{what} {', '.join(sorted(which))}" for what, which in done.items() if which]
    deployment.report(f"Reloaded: {'; '.join(changes) or 'nothing has changed'}")


def request_reload(home: Path) -> bool:
    """Make the `gridq up` or `gridq worker` of this home reload its seats. Return whether one runs."""
    is_running = False
    for name in (GRID_RECORD, WORKER_RECORD):
        record = read_running_record(home, name)
        if record is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(int(record["pid"]), RELOAD_SIGNAL)
                is_running = True
    return is_running


def _differ(one: Seat, other: Seat) -> bool:
    """Return whether a seat is another one by now, beyond what its profile follows at work."""
    if one.offer.stamp:
        parts = [(s.offer.stamp, s.offer.concurrency, s.offer.limits, s.terms) for s in (one, other)]
        return parts[0] != parts[1]
    return (one.offer, one.queues, one.terms) != (other.offer, other.queues, other.terms)
