"""Probe this machine: every enabled profile looks for its seats, all of them in parallel."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from gridq import stages
from gridq.config.settings import Settings
from gridq.errors import ConfigError, GridError
from gridq.profiles.profile import Profile, load_profiles
from gridq.protocol import queue_names
from gridq.protocol.meters import OWN, Meter
from gridq.protocol.models import Json, ProbeReport, SeatOffer
from workers.machine.seats import ProbeResult, Seat, check_distinct, make_local_seat, read_seats_file
from workers.owner.activity import select_source
from workers.owner.lend import Owners, Terms

PROBE_TIMEOUT_SECONDS = 5.0
"""Time after which a probe is abandoned and reported. A probe should take two seconds at most."""


def probe_for_seat(config: Settings, seat: str | None) -> ProbeResult:
    """Probe for the worker of `seat`. If the seats file shows which profile the seat belongs to, only that
    one is loaded: what the others import would stay in the worker's memory. Of its tables only the seat's own
    is probed, since the workers of all seats start at once. ConfigError: as `probe_machine`.
    """
    kind = _find_kind(config, seat) if seat else None
    if kind is None or seat is None:
        return probe_machine(config, load_profiles(config.profiles))
    profiles = load_profiles((kind,))
    try:
        return probe_machine(config, profiles, config.profiles, only=seat)
    except ConfigError:  # it counts the tables from that of the seat
        return probe_machine(config, profiles, config.profiles)


def _find_kind(config: Settings, seat: str) -> str | None:
    """Return the only kind whose tables name the seat, if a profile has the same name."""
    try:
        tables = read_seats_file(config.home, set(config.profiles))
    except ConfigError:
        return None  # `probe_machine` reports it
    kinds = [
        kind
        for kind, table in tables.items()
        if any(
            isinstance(each, dict) and each.get("name") == seat
            for each in (table if isinstance(table, list) else [table])
        )
    ]
    return kinds[0] if len(kinds) == 1 and kinds[0] in config.profiles else None


def probe_machine(
    config: Settings, profiles: Mapping[str, Profile], kinds: Iterable[str] = (), *, only: str | None = None
) -> ProbeResult:
    """Return the seats of this machine. `kinds`: the kinds of profiles that are not probed; their tables in
    the seats file are allowed, and ignored. `only`: where a kind has a list of tables, those of this name are
    probed. ConfigError: the seats file or a stages module is invalid.
    """
    owners = Owners()
    tables = owners.split(read_seats_file(config.home, {*profiles, *kinds}))
    if only is not None:
        tables = {kind: _select_table(table, only) for kind, table in tables.items()}
    if config.stages:
        stages.load_modules(config.stages)
    found = ProbeResult([make_local_seat(tables, config.stages)])
    for kind, report in _probe_all(profiles, tables).items():
        if isinstance(report, ConfigError):
            raise report
        if isinstance(report, str):
            found.missing.append(f"{kind}: {report}")
            continue
        profile = profiles[kind]
        found.missing += [f"{kind}: {why}" for why in report.missing]
        found.not_lent += [f"{kind}: {what}" for what in report.not_lent]
        try:
            found.seats += [_make_seat(profile, offer) for offer in report.found]
        except Exception as exc:
            found.missing.append(f"{kind}: the profile offers an invalid seat: {type(exc).__name__}: {exc}")
    check_distinct(found.seats)
    for seat in found.seats[:]:
        found.seats.remove(seat)
        try:
            found.seats.append(_apply_terms(seat, owners.terms_of(seat.offer.kind, seat.name)))
        except ValueError as exc:
            found.missing.append(f"{seat.offer.kind}: {seat.name} is not lent: {exc}")
    found.missing += _explain_never_lent(found.seats)
    return found


def _select_table(table: Json, seat: str) -> Json:
    """Return the part of a kind's list of tables that has the name `seat`. A single table stays as it is."""
    if not isinstance(table, list):
        return table
    return [each for each in table if isinstance(each, dict) and each.get("name") == seat]


def _apply_terms(seat: Seat, terms: Terms) -> Seat:
    """Return the part of a seat that its owner lends. ValueError: nothing is lent, and why."""
    if terms.lend.share is not None and not seat.offer.limits:
        raise ValueError("lend.share needs a budget, and the seat has none")
    whole_budget = next((limit.amount for limit in seat.offer.limits if limit.resource == "money"), None)
    offer = terms.apply_to(seat.offer)
    for all_of_it, lent in zip(seat.offer.limits, offer.limits, strict=True):
        if all_of_it.amount > 0 and lent.amount == 0:
            budget = Meter(
                account=OWN, resource=all_of_it.resource, window=all_of_it.window, limit=all_of_it.amount
            )
            raise ValueError(
                f"lend.share lends nothing of its {budget.title}: {budget.format_amount(budget.limit)}"
            )
    if offer is not seat.offer and seat.profile is not None:
        seat = _make_seat(seat.profile, offer)
    return replace(seat, offer=offer, terms=terms, whole_budget=whole_budget)


def _explain_never_lent(seats: Sequence[Seat]) -> list[str]:
    """Explain which seats will never be lent: they set `only_when_idle` on a machine without idle time."""
    idle_only = [seat for seat in seats if seat.terms.lend.only_when_idle is not None]
    idle = select_source().read_idle_time() if idle_only else None
    if idle is None or idle.seconds is not None:
        return []
    reason = f"is never lent: only_when_idle needs the machine's idle time, and {idle.reason}"
    return [f"{seat.offer.kind}: {seat.name} {reason}" for seat in idle_only]


def _make_seat(profile: Profile, offer: SeatOffer) -> Seat:
    capability = profile.Capability.model_validate(offer.capability)
    served = tuple(map(queue_names.check_queue_name, profile.queues(capability)))
    return Seat(offer, served, profile, capability)


def _probe_all(
    profiles: Mapping[str, Profile], tables: Mapping[str, Json]
) -> dict[str, ProbeReport | ConfigError | str]:
    """Probe with all profiles; return each kind's report, the ConfigError it raised, or why it has
    no report.
    """
    reports: dict[str, ProbeReport | ConfigError | str] = {}

    def probe(kind: str, profile: Profile) -> None:
        try:
            reports[kind] = profile.probe(tables.get(kind, {}))
        except ConfigError as exc:
            reports[kind] = exc
        except GridError as exc:
            reports[kind] = str(exc)
        except BaseException as exc:  # a broken profile must not cost the machine its other seats
            reports[kind] = f"the probe failed: {type(exc).__name__}: {exc}"

    threads = [threading.Thread(target=probe, args=pair, daemon=True) for pair in profiles.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PROBE_TIMEOUT_SECONDS)
    late = f"the probe took longer than {PROBE_TIMEOUT_SECONDS:g} s"
    return {kind: reports.get(kind, late) for kind in profiles}
