"""Explain what a job waits for, in words."""

from __future__ import annotations

import time
from typing import Any

from redis import Redis

from gridq.limits import accounts
from gridq.protocol import queue_names
from gridq.protocol.durations import format_seconds
from gridq.protocol.meters import describe_shortage, format_local_time
from gridq.protocol.states import JobState, StageState
from gridq.seats.access import describe_access, find_pinned, is_excluded
from gridq.seats.registry import LiveSeat, explain_no_seat, has_router, read_live_seats
from gridq.store.keys import Keys
from gridq.views.jobs import JobView, StageView, group_by_step

MAX_NAMED = 3
"""Seats and budgets that one sentence names."""


def explain_wait(client: Redis, keys: Keys, view: JobView) -> str:
    """Return what completes "it waits for …": a router, a seat, a running stage or a delay.

    It is empty if the job has ended or does not exist.
    """
    if view.state is JobState.QUEUED:
        if has_router(read_live_seats(client, keys)):
            return "a router to admit it"
        return f"a router to admit it, and {queue_names.NO_ROUTER}; {queue_names.START_ROUTER}"
    if view.state is not JobState.RUNNING:
        return ""
    if not view.stages:  # the plan is too large to be read
        return f"{view.of - view.done} of its {view.of} steps"
    quarantined = view.find_stages(StageState.QUARANTINED)
    if quarantined:  # whatever else runs, the job cannot end without an operator
        return _explain_quarantine(quarantined[0])
    running = group_by_step(view.find_stages(StageState.RUNNING))
    if running:
        more = len(running) - 1
        others = f" (and {more} other{'' if more == 1 else 's'})" if more else ""
        first = running[0][0]
        loading = _explain_loading(client, keys, first)
        return f"{first.stage}, which runs on {first.seat}{others}{loading and f': {loading}'}"
    ready = view.find_stages(StageState.READY)
    if not ready:
        return "the delay of a Retry, or the next stage to become ready"
    first = max(ready, key=lambda stage: stage.wait_ms or 0.0)
    if client.exists(keys("parked", view.agent)):
        charged: Any = client.hget(keys("job", view.job), "charged_team")
        report = accounts.read_accounts(client, keys, "UTC")
        return "a new budget window: " + _explain_parked(report, view.agent, (charged or b"").decode())
    live = read_live_seats(client, keys)
    team = ""
    if any(seat.lends_to for seat in live):
        stored: Any = client.hget(keys("job", view.job), "team")
        team = (stored or b"").decode()
    queue = " or ".join(first.links) or first.queue
    return f"a seat of {queue} to run {first.stage}: {explain_ready_stage(first, live, view.agent, team)}"


def _explain_loading(client: Redis, keys: Keys, stage: StageView) -> str:
    """Return what a running stage's seat loads before it can answer, as it said with its last heartbeat.

    Names the model, and the share that is done if that is known. "" if the stage's model is loaded.
    """
    name, _, machine = stage.seat.rpartition("@")
    for seat in read_live_seats(client, keys, only=f"{machine}.{name}"):
        if loading := describe_loading(seat, stage.queue):
            return loading
    return ""


def describe_loading(seat: LiveSeat, queue: str) -> str:
    """Return in words which model of a queue a seat is loading, with the share done if known; else ""."""
    loading = seat.details.get("loading")
    found = loading.get(queue) if isinstance(loading, dict) else None
    if not isinstance(found, dict):
        return ""
    return f"loading {found.get('model')} on {seat.worker}{_format_share(found.get('share'))}"


def explain_download(stage: StageView, seats: list[LiveSeat]) -> str:
    """Return which of the seats downloads the model that a ready stage waits for, as its heartbeat said; ""
    if none does.
    """
    for seat in seats:
        downloads = seat.details.get("downloading")
        found = downloads.get(stage.queue) if isinstance(downloads, dict) else None
        if isinstance(found, dict):
            return f"downloading {found.get('model')} to {seat.worker}{_format_share(found.get('share'))}"
    return ""


def _format_share(share: object) -> str:
    return f", {share:.0%}".replace("%", " %") if isinstance(share, int | float) else ""


def explain_ready_stage(stage: StageView, live: list[LiveSeat], agent: str = "", team: str = "") -> str:
    """Explain why a ready stage of an agent does not run, given the live seats."""
    serving = [seat for seat in live if stage.queue in seat.queues]
    if not serving and stage.queue == queue_names.PURE:
        return f"{queue_names.NO_ROUTER}; {queue_names.START_ROUTER}"
    if not serving:
        return f"no live seat serves it; {explain_no_seat(stage.queue, live)}"
    lent = [seat for seat in serving if seat.is_lent_to(agent, team)]
    if not lent:
        return "; ".join(describe_access(seat.seat, seat.lends_to) for seat in serving[:MAX_NAMED])
    if download := explain_download(stage, lent):
        return download
    able = [seat for seat in lent if not is_excluded(seat.seat, stage.excluded)]
    pinned = find_pinned(stage.excluded)
    if pinned and all(seat.seat != pinned for seat in live):
        return f"the seat {pinned}, which its job is pinned to, is not live"
    if not able:  # a seat that failed it and paused takes it again once it is ready
        paused = [seat for seat in lent if seat.state != "ready"]
        ready_names = [seat.seat for seat in lent if seat.state == "ready"]
        failed = [f"{' and '.join(ready_names[:MAX_NAMED])} failed it or lacks what it needs"]
        if not paused:
            return f"{failed[0]}, and no other seat serves it"
        return "; ".join([*map(_describe_state, paused[:MAX_NAMED]), *(failed if ready_names else [])])
    ready = [seat for seat in able if seat.state == "ready"]
    if not ready:
        return "; ".join(map(_describe_state, able[:MAX_NAMED]))
    slots, busy = sum(seat.concurrency for seat in ready), sum(seat.busy for seat in ready)
    if busy >= slots:
        return f"all {slots} slots are busy" if slots > 1 else "its only slot is busy"
    rate_limited = [seat for seat in ready if seat.rate_until is not None]
    if len(rate_limited) == len(ready):
        first = rate_limited[0]
        wait = min(seat.rate_until or 0.0 for seat in rate_limited) - time.time()
        used = f"{first.seat} has used its {first.requests_per_minute} requests per minute"
        when = f"in {format_seconds(max(round(wait), 1))}" if wait >= 0.5 else "possible now"
        return f"{used}; the next is {when}"
    shortages = [(seat, seat.find_shortage(stage.queue, stage.cost, stage.expects)) for seat in ready]
    short = [(seat, meter) for seat, meter in shortages if meter is not None]
    if len(short) == len(ready):
        # Seats can share a budget: name it once.
        budgets = dict.fromkeys(describe_shortage(meter, seat.seat) for seat, meter in short)
        return "a budget has too little left: " + "; ".join(list(budgets)[:MAX_NAMED])
    if all(seat.busy and stage.queue in seat.pass_over for seat in ready):
        first = ready[0]
        most = format_seconds(round(first.pass_over[stage.queue]))
        return f"{first.seat} uses another model, whose work goes first for at most {most}"
    return f"{ready[0].seat} has a free slot and is about to claim it"


def _explain_parked(report: accounts.AccountsReport, agent: str, team: str) -> str:
    """Name the limits that an agent or its team has used up."""
    used_up = []
    for account in report.accounts:
        concerned = (account.kind, account.name) in (("agent", agent), ("team", team))
        if not concerned or account.what.startswith("jobs") or account.limit is None:
            continue
        if account.limit == 0 or account.spent > account.limit:
            used, limit = account.format_amount(account.spent), account.format_amount(account.limit)
            until = f", until {format_local_time(account.resets_at)}" if account.resets_at is not None else ""
            what = f"{used} of {limit} ({account.what})"
            used_up.append(f"{account.kind} {account.name} has used {what}{until}")
    return "; ".join(used_up) or f"the agent {agent!r} or its team has used up a limit"


def _explain_quarantine(stage: StageView) -> str:
    until = time.strftime("%H:%M", time.localtime(stage.until or 0))
    return (
        f"an operator: stage {stage.stage} killed the process that ran it twice, most recently on worker "
        f"{stage.seat}; release or drop it before {until} (gridq quarantine)"
    )


def _describe_state(seat: LiveSeat) -> str:
    text = f"{seat.seat} is {seat.state}"
    left = 0.0 if seat.until is None else seat.until - time.time()
    if left >= 0.5:
        text += f" for another {format_seconds(max(round(left), 1))}"
    return f"{text}: {seat.reason}" if seat.reason else text
