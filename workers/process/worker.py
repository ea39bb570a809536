"""A worker process: it chooses its seat, goes live, drains and leaves, driven by Celery's signals."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO

from celery import Celery, signals

from gridq import stages
from gridq.config.machine_id import get_host_id, get_machine_id
from gridq.config.settings import Settings, settings
from gridq.errors import ConfigError, SeatInUse
from gridq.execution.session import Session
from gridq.execution.shutdown import Shutdown
from gridq.execution.tasks import run_stage
from gridq.messaging import answers, wake_ups
from gridq.messaging.monitor_events import Monitors
from gridq.messaging.router_request import install_revoke
from gridq.messaging.transport import reconnect_consumer
from gridq.process import parent_watch, startup_errors
from gridq.process.heap import keep_heap_small, settle_heap
from gridq.process.watchdog import Watchdog
from gridq.profiles.profile import Profile, StageContext
from gridq.protocol import queue_names
from gridq.protocol.models import Json, SeatTerms, StageCall
from gridq.protocol.seat_states import UNREACHABLE, Unavailable
from gridq.store.capacity import check_persistence
from gridq.store.connection import connect
from gridq.store.readiness import AWAY_SECONDS, wait_for_server
from gridq.store.scripts import Scripts
from workers.machine.locks import take_lock
from workers.machine.probing import probe_for_seat
from workers.machine.seats import ProbeResult, Seat
from workers.owner.recovery import Recovery
from workers.owner.rules import make_rules
from workers.owner.watch import Watch
from workers.process import timeouts
from workers.process.heartbeat import Heartbeat
from workers.process.last_resort import LastResort
from workers.process.model_commands import ModelCommands

log = logging.getLogger(__name__)

LOCK_WAIT_SECONDS = 0.5
"""Time to wait for a seat's lock."""


class SeatRunner:
    """Runs the stages of one seat: built-in stages itself, and Python stages unless the seat's profile runs
    them; the others through the profile.
    """

    def __init__(self, profile: Profile | None) -> None:
        self.profile = profile

    def __call__(self, stage: StageCall, value: Json, context: StageContext) -> Json:
        runs_python = self.profile is not None and self.profile.runs_python
        own = ("builtin:",) if runs_python else ("builtin:", "python:")
        if self.profile is None or stage.implementation.startswith(own):
            return stages.run_builtin(stage, value, context)
        return self.profile.run(stage, value, context)


class Worker:
    """The worker of one seat, in this process."""

    def __init__(
        self, app: Celery, config: Settings, seat: Seat, serves: Sequence[str], concurrency: int
    ) -> None:
        client = connect(name=f"gridq-{seat.name}")
        wait_for_server(client, away=AWAY_SECONDS if parent_watch.is_supervised() else 0.0)
        if shortcoming := check_persistence(client):
            log.warning(shortcoming)
        scripts = Scripts(client, config)
        self.app = app
        self.config = config
        self.seat = seat
        self.machine = get_machine_id(config.home)
        self.lock = _lock_seat(config.home, seat.name)
        self._is_live = False
        self._narrowed_to = None if tuple(serves) == seat.queues else frozenset(serves)
        worker = f"{seat.name}@{self.machine}"
        last_resort: Sequence[str] = ()
        if seat.profile is not None and seat.capability is not None:
            last_resort = self._narrow(seat.profile.last_resort_queues(seat.capability))
        self.last_resort = LastResort(
            client, scripts.keys, f"{self.machine}.{seat.name}", last_resort, self._offer_changed
        )
        self.last_resort.look()
        self.session = Session(
            scripts,
            config,
            seat=f"{self.machine}.{seat.name}",
            host=get_host_id(self.machine),
            concurrency=concurrency,
            queues=self._yield(serves),
            runner=SeatRunner(seat.profile),
            worker=worker,
            monitors=Monitors(app, scripts, worker),
            warm=seat.profile.warm_queues if seat.profile is not None else None,
            pass_over=seat.profile.pass_over_seconds if seat.profile is not None else None,
            find_queues=self._find_queues,
            terms=_make_terms(seat),
            on_end=partial(answers.publish_answer, app, scripts),
            on_gone=self._gone,
            on_change=self._changed,
            on_renewed=self._check_celery,
        )
        self.heartbeat = Heartbeat(
            client,
            config,
            self.session,
            machine=self.machine,
            kind=seat.offer.kind,
            capability=seat.offer.capability,
            descriptor=seat.capability,
            profile=seat.profile,
            last_resort=last_resort,
            specs=stages.load_modules(config.stages) if seat.profile is None and config.stages else [],
            version=version("gridq"),
            owner=seat.terms.owner,
            share=seat.terms.lend.share,
            whole_budget=seat.whole_budget if seat.terms.lend.share is not None else None,
        )
        rules = make_rules(config.home, seat.name, seat.terms.lend, seat.offer.program)
        self.owner = Watch(config.home, seat.name, self.session, rules)
        stamp_login = seat.profile.stamp_login if seat.profile is not None else str
        self.commands: ModelCommands | None = None
        if seat.profile is not None and type(seat.profile).load is not Profile.load:
            self.commands = ModelCommands(client, scripts.keys, self.session.seat, seat.profile)
        self.recovery = Recovery(config.home, seat.name, self.session, stamp_login)
        self.shutdown = Shutdown(self.session, on_draining=self.heartbeat.beat, leave=self._leave)
        own = scripts.keys.queue(queue_names.make_seat_queue(self.session.seat))
        self.watchdog = Watchdog(
            concurrency,
            config.watchdog,
            message_waits=lambda: client.llen(own) > 0,
            work=self.session.work,
            reconnect=reconnect_consumer,
            give_up=self.shutdown.end_without_celery,
        )
        self._client = client

    def start(self) -> None:
        """Open the profile, declare the wake-ups, offer the user's stages, go live, advertise."""
        self.session.scripts.adopt()  # before anything is written
        if self.seat.profile is not None and self.seat.capability is not None:
            self.seat.profile.watch_offer(self._offer_changed)
            self.seat.profile.watch_warm_queues(self._warm_queues_changed)
            self.seat.profile.open(self.seat.capability, self.seat.offer.config)
        wake_ups.write_templates(self.app, self._client, self.session.scripts.keys)
        install_revoke(self.session.scripts, partial(answers.publish_answer, self.app, self.session.scripts))
        self.heartbeat.publish_stages()
        self.owner.prepare()
        self.session.start()
        self.heartbeat.timeouts = timeouts.read_timeouts(
            self.app, self.session.scripts, self.config, self.session.seat
        )
        self.heartbeat.start()
        self.owner.start()
        self.recovery.start()
        if self.commands is not None:
            self.commands.start()
        self._is_live = True
        if self._offer_differs():  # since the probe
            self._offer_changed()
        self.last_resort.start()
        run_stage.answer = self.answer_wake_up

    def stop(self) -> None:
        """Leave the grid and release the profile's resources. Stages that run outside Celery may finish
        first.
        """
        run_stage.answer = None
        self.session.stop()
        self._leave()

    def answer_wake_up(self) -> Callable[[], None]:
        """Begin to run the stages that wait for this seat. Return the rest, for the slot's thread."""
        return self.watchdog.handling_message()(self.session.begin_work())

    def _check_celery(self) -> None:
        self.watchdog.check()

    def _offer_changed(self) -> None:
        """Offer what the seat's profile offers now, or say why it cannot work."""
        profile, capability = self.seat.profile, self.seat.capability
        if profile is None or capability is None or not self._is_live or self.session.stopped:
            return
        current = profile.current_capability(capability)
        fault = profile.health()
        if fault:
            log.warning("seat %s: %s", self.seat.name, fault)
        self.heartbeat.change_capability(current)
        queues = self._yield(self._narrow(profile.queues(current)))
        families = profile.families(current)
        self.session.change_offer(queues, families, Unavailable(UNREACHABLE, fault) if fault else None)

    def _warm_queues_changed(self) -> None:
        """Tell the claims which work the seat prefers now, and whoever looks what it loads."""
        self.session.renew_soon()
        self.heartbeat.refresh()

    def _offer_differs(self) -> bool:
        profile, capability = self.seat.profile, self.seat.capability
        if profile is None or capability is None:
            return False
        return profile.current_capability(capability) != capability or bool(profile.health())

    def _find_queues(self, in_cooldown: Collection[str]) -> Sequence[str]:
        """Return the queues that the seat could serve while some of its models are in cooldown."""
        profile, capability = self.seat.profile, self.seat.capability
        if profile is None or capability is None:
            return self.seat.queues
        left = profile.exclude_models(profile.current_capability(capability), in_cooldown)
        return () if left is None else profile.queues(left)

    def _narrow(self, queues: Sequence[str]) -> list[str]:
        """Return those of `queues` that this worker serves: all of them, or those that `-Q` named."""
        return [queue for queue in queues if self._narrowed_to is None or queue in self._narrowed_to]

    def _yield(self, queues: Sequence[str]) -> list[str]:
        """Return `queues` without those of the last resort that other seats serve now."""
        return [queue for queue in queues if queue not in self.last_resort.served_elsewhere]

    def _changed(self) -> None:
        self.heartbeat.beat()

    def _leave(self) -> None:
        self.last_resort.stop()
        self.owner.stop()
        self.recovery.stop()
        if self.commands is not None:
            self.commands.stop()
        self.heartbeat.stop()
        if self.seat.profile is not None:
            self.seat.profile.close()
        self.lock.close()

    def _gone(self) -> None:
        """Advertise everything again: the server has lost this seat (a new server, a lost file)."""
        wake_ups.write_templates(self.app, self._client, self.session.scripts.keys)
        self.heartbeat.beat()


def _make_terms(seat: Seat) -> SeatTerms:
    """Return the terms that a seat registers with."""
    families, prices, hourly, keeps_prompts = {}, None, None, False
    if seat.profile is not None and seat.capability is not None:
        families = {queue: tuple(names) for queue, names in seat.profile.families(seat.capability).items()}
        prices = seat.profile.prices(seat.capability)
        hourly = seat.profile.hourly_price(seat.capability, seat.offer.config)
        keeps_prompts = seat.profile.keeps_prompts(seat.offer.config)
    return SeatTerms(
        limits=seat.offer.limits,
        requests_per_minute=seat.offer.requests_per_minute,
        lends_to=seat.terms.lends_to,
        owner=seat.terms.owner,
        families=families,
        prices=prices,
        hourly=hourly,
        keeps_prompts=keeps_prompts,
    )


def _lock_seat(home: Path, seat: str) -> TextIO:
    """Lock the seat on this machine. SeatInUse: another process of this home serves it."""
    folder = home / "seats"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = (folder / f"{seat}.lock").open("a+")
    if not take_lock(file.fileno(), LOCK_WAIT_SECONDS):
        file.seek(0)
        other = file.read().strip() or "unknown"
        file.close()
        raise SeatInUse(
            f"Another worker of this machine already serves the seat {seat!r}",
            {"worker": f"process {other}", "fix": "stop that worker"},
        ) from None
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file


def _choose_seat(found: ProbeResult, name: str | None, queues: Sequence[str]) -> tuple[Seat, tuple[str, ...]]:
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
            served = "; ".join(f"{each.name} serves {', '.join(each.queues)}" for each in found.seats)
            raise ConfigError(
                "No seat of this machine serves " + ", ".join(queues),
                {"path": "-Q", "expected": f"queues of one seat: {served}"},
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


class WorkerProcess:
    """The seat that this process's Celery worker serves; Celery's signals drive its life."""

    def __init__(self) -> None:
        self.worker: Worker | None = None
        self._options: dict[str, Any] = {}

    def connect_signals(self) -> None:
        """Make this process's Celery worker serve a seat."""
        signals.celeryd_init.connect(self._keep_options, weak=False)
        signals.worker_init.connect(self._choose_seat, weak=False)
        signals.celeryd_after_setup.connect(self._start, weak=False)
        signals.worker_ready.connect(self._ready, weak=False)
        signals.worker_shutting_down.connect(self._begin_shutdown, weak=False)
        signals.worker_shutdown.connect(self._stop, weak=False)

    def _keep_options(self, options: dict[str, Any] | None = None, **_: Any) -> None:
        """Keep the options of the command line: Celery has applied them by the time the seat is known."""
        self._options = dict(options or {})
        keep_heap_small()

    def _choose_seat(self, sender: Any = None, **_: Any) -> None:
        """Choose the seat and give Celery its pool, its slots, its queues and its name."""
        parent_watch.end_with_parent()  # first: the server may have to be waited for
        with startup_errors.exit_on_error():
            config = settings()
            queues = self._options.get("queues") or ()
            if isinstance(queues, str):
                queues = [name for name in queues.split(",") if name]
            named = self._options.get("seat") or None
            seat, serves = _choose_seat(probe_for_seat(config, named), named, list(queues))
            pool = str(getattr(sender.pool_cls, "__module__", sender.pool_cls))
            if pool not in ("celery.concurrency.thread", "threads"):
                raise ConfigError(
                    "A seat's slots are threads",
                    {"path": "--pool", "expected": "threads", "fix": "leave -P out"},
                )
            concurrency = int(self._options.get("concurrency") or seat.offer.concurrency)
            if concurrency > seat.offer.concurrency:
                raise ConfigError(
                    f"The seat {seat.name!r} has {seat.offer.concurrency} slots",
                    {"path": "-c", "expected": f"at most {seat.offer.concurrency}", "fix": "leave -c out"},
                )
            sender.concurrency = concurrency
            self.worker = worker = Worker(sender.app, config, seat, serves, concurrency)
            sender.hostname = worker.session.worker
            sender.app.amqp.queues.select([queue_names.make_seat_queue(worker.session.seat), *serves])

    def _start(self, **_: Any) -> None:
        if self.worker is not None:
            with startup_errors.exit_on_error():
                self.worker.shutdown.catch_early_signals()
                self.worker.start()

    def _ready(self, **_: Any) -> None:
        if self.worker is not None:
            self.worker.shutdown.catch_quit()
            threading.Thread(target=settle_heap, name="settle heap", daemon=True).start()

    def _begin_shutdown(self, **_: Any) -> None:
        if self.worker is not None:
            self.worker.shutdown.handle_signal()

    def _stop(self, **_: Any) -> None:
        if self.worker is not None:
            self.worker.stop()
            self.worker = None
