"""Show how a graph would run: its steps, their queues and costs, and the seats for each: `gridq explain`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from gridq.cli.exit_codes import EPILOG, DebugOption, JsonOption, to_one_line
from gridq.cli.grid import open_broker_client
from gridq.cli.inputs import GraphArgument, StagesOption, apply_stages_option, locate_graph_errors, read_graph
from gridq.cli.output import format_money, label_stage, make_console, make_table, print_json
from gridq.protocol.queue_names import format_queue

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gridq.client import BrokerClient
    from gridq.config.settings import Settings
    from gridq.graph.plan import Plan, Step
    from gridq.profiles.profile import Profile
    from gridq.protocol.meters import Meter, UsageEstimate
    from gridq.seats.registry import LiveSeat
    from gridq.submission.quota_preview import Allowance

app = typer.Typer()

PURE = "gridq:pure"

MAX_SEATS = 3
"""The most seats named in one cell, and the most reasons in one line."""

MAX_STEPS = 200
"""The most steps in the table; `--json` has all."""

MAX_REASONS = 20
"""The most lines about queues that no seat can run."""

MAX_RANGES = 4
"""The most ranges of steps in one cell."""


@app.command(epilog=EPILOG, short_help="Show a graph's plan, and which seats could run each step.")
def explain(
    graph: GraphArgument,
    stages: StagesOption = None,
    agent: Annotated[
        str | None,
        typer.Option(
            "--agent", metavar="NAME", help="Check the quota of this agent. Default: your API key's agent."
        ),
    ] = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Show how a graph would run, without submitting it.

    For each step you see its place in the graph, the steps it waits for, its queue, its estimated cost, and
    which live seats could run it now, or why none can. You also see whether the agent's API key and quota
    allow the job. Neighbouring pure stages (built-in, without side effects) form one
    step.
    """
    from gridq.config.settings import settings
    from gridq.process.heap import pause_gc
    from gridq.submission.planning import LARGE_GRAPH_BYTES

    text = read_graph(graph)
    config = apply_stages_option(settings(), stages)
    large = len(text) > LARGE_GRAPH_BYTES
    with open_broker_client(config) as client, locate_graph_errors(graph), pause_gc(large):
        report = explain_graph(client, text, config, agent)
    if json:
        print_json(report)
        return
    table = make_table("#", "stage", "after", "queue", "estimate", "seats", gap=1)
    for step in report["steps"][:MAX_STEPS]:
        table.add_row(
            str(step["step"]),
            _format_stages(step),
            _format_steps(step["after"]),
            _format_queue(step),
            _format_estimate(step),
            _format_seats(step),
        )
    make_console().print(table)
    _print_hidden(len(report["steps"]) - MAX_STEPS, "steps")
    lines: dict[tuple[str, str], str] = {}
    for step in report["steps"]:
        queue, reason = step["queue"], step["no_seat_reason"]
        if reason:
            lines.setdefault((queue, reason), f"No seat can run {queue} now (step {step['step']}): {reason}")
    for line in list(lines.values())[:MAX_REASONS]:
        typer.echo(line)
    _print_hidden(len(lines) - MAX_REASONS, "reasons")
    if report["refusal"]:
        subject = f"A job of the agent {report['agent']!r}" if report["agent"] else "The job"
        typer.echo(f"{subject} would be refused now: {to_one_line(report['refusal']['text'])}")
    elif agent is not None:
        typer.echo(f"The quota of the agent {agent!r} allows the job now.")
    typer.echo(f"The result is the answer of step {report['answer']}.")


def explain_graph(
    client: BrokerClient, text: str, config: Settings, agent: str | None = None
) -> dict[str, Any]:
    """Return the plan of a graph as JSON, and whether the agent may submit it.

    `agent` None means the agent of the settings' API key. Raises GraphError, InputTooLarge or ConfigError if
    the graph cannot be submitted.
    """
    from dataclasses import replace

    from gridq.graph.canonical import compute_composition_id
    from gridq.graph.catalogue import StageSpec
    from gridq.limits.quotas_loader import read_aliases
    from gridq.profiles.profile import load_profiles
    from gridq.protocol.meters import NO_ESTIMATE
    from gridq.seats import registry
    from gridq.submission.estimates import estimate_tokens, expect_usage
    from gridq.submission.planning import compile_text, load_local_catalogue
    from gridq.submission.quota_preview import check_allowance
    from gridq.submission.request import encode_graph
    from gridq.submission.seat_filters import find_demands

    profiles = load_profiles(config.profiles)
    encode_graph(text, config)
    published = registry.read_published_stages(client.redis, client.keys)
    catalogue = load_local_catalogue(config, profiles).extend(map(StageSpec.from_json, published))
    aliases = read_aliases(client.redis, client.keys)
    graph, output, plan = compile_text(text, catalogue, config, profiles, aliases)
    seats = client.seats()
    demands = {each.step: each.demand for each in find_demands(plan, profiles, aliases)}
    estimates = expect_usage(estimate_tokens(plan, profiles), b"", 0)
    money = sum(step.micro_dollars for step in plan.steps)
    tokens = sum(each.tokens for each in estimates.values())
    gpu_ms = sum(each.gpu_ms or 0 for each in estimates.values())
    allowed = check_allowance(client.scripts, config, agent, money, tokens, gpu_ms=gpu_ms)
    lent = _find_lent_seats(allowed, seats)
    steps = []
    for index, planned in enumerate(plan.steps):
        estimate = estimates.get(index, NO_ESTIMATE)
        options = [
            _match_queue(
                replace(planned, queue=queue), demands.get(index), estimate, seats, profiles, lent=lent
            )
            for queue in planned.queues
        ]
        step, shortfalls, able = next((option for option in options if option[2]), options[0])
        reasons = {} if able else dict.fromkeys(
            _explain_no_seat(at, estimate, seats, lacking) for at, lacking, _ in options
        )  # fmt: skip
        steps.append(
            {
                "step": index,
                "path": step.path,
                "stages": [{"path": op.path, "name": op.name, "runs": op.implementation} for op in step.ops],
                "after": list(step.after),
                "arm": None if step.guard is None else {"of": step.guard[0], "where": step.guard[1]},
                "queue": step.queue,
                "queues": list(planned.queues),
                "micro_dollars": step.micro_dollars,
                "tokens": estimate.tokens,
                "gpu_seconds": None if estimate.gpu_ms is None else estimate.gpu_ms / 1000,
                "seats": [seat.seat for seat in able],
                "free_slots": sum(seat.free for seat in able),
                "shortfalls": shortfalls,
                "no_seat_reason": "; ".join(reasons),
            }
        )
    return {
        "composition": compute_composition_id(graph),
        "description": graph.description,
        "output": output.to_json(),
        "answer": plan.answer,
        "steps": steps,
        "retries": _list_retries(plan),
        "agent": allowed.agent,
        "team": allowed.team,
        "refusal": _format_refusal(allowed),
    }


def _find_lent_seats(allowed: Allowance, seats: Sequence[LiveSeat]) -> dict[str, str]:
    """Return the seats that are lent only to other agents → why; none if the agent is not known."""
    agent, team = allowed.agent, allowed.team or ""
    return {
        seat.seat: f"it is lent only to {', '.join(seat.lends_to)}"
        for seat in seats
        if agent is not None and not seat.is_lent_to(agent, team)
    }


def _format_refusal(allowed: Allowance) -> dict[str, Any] | None:
    """Return the error that a submission would get as JSON, with one line of `text`, or None."""
    error = allowed.refusal
    return None if error is None else {**error.to_record(), "text": str(error)}


def _match_queue(
    step: Step,
    demand: Any,
    estimate: UsageEstimate,
    seats: Sequence[LiveSeat],
    profiles: Mapping[str, Profile],
    *,
    lent: Mapping[str, str],
) -> tuple[Step, dict[str, str], list[LiveSeat]]:
    """Return the step, what the seats of its queue lack, and the seats that could run it now.

    `step` stands at one of its queues. `lent` has the seats that are lent only to other agents → why.
    """
    queue_demand = None if demand is None else demand.find_alternative(step.queue)
    shortfalls = _find_shortfalls(step, queue_demand, seats, profiles)
    serving = [seat for seat in seats if step.queue in seat.queues]
    shortfalls |= {seat.seat: lent[seat.seat] for seat in serving if seat.seat in lent}
    able = [
        seat
        for seat in serving
        if seat.state == "ready"
        and seat.seat not in shortfalls
        and _find_short_budget(seat, step, estimate) is None
    ]
    # Least busy first: these would take the step.
    return step, shortfalls, sorted(able, key=lambda seat: -seat.free)


def _find_shortfalls(
    step: Step, demand: Any, seats: Sequence[LiveSeat], profiles: Mapping[str, Profile]
) -> dict[str, str]:
    """Return the seats of the step's queue that do not meet its demand → what each one lacks."""
    from pydantic import ValidationError

    found: dict[str, str] = {}
    for seat in seats:
        profile = profiles.get(seat.kind)
        if demand is None or profile is None or step.queue not in seat.queues or seat.stale:
            continue
        try:
            shortfall = profile.explain_mismatch(demand, profile.Capability.model_validate(seat.capability))
        except ValidationError:  # its worker has another version: assume that the seat meets the demand
            continue
        if shortfall:
            found[seat.seat] = shortfall
    return found


def _find_short_budget(seat: LiveSeat, step: Step, estimate: UsageEstimate) -> Meter | None:
    """Return the seat's budget that is too small for the step, or None."""
    from gridq.jobs.record import round_up_cost

    return seat.find_shortage(step.queue, round_up_cost(step.micro_dollars), estimate)


def _explain_no_seat(
    step: Step, estimate: UsageEstimate, seats: Sequence[LiveSeat], shortfalls: dict[str, str]
) -> str:
    """Return why no live seat could run the step now."""
    from gridq.protocol.meters import describe_shortage
    from gridq.protocol.queue_names import NO_ROUTER, START_ROUTER
    from gridq.seats.registry import explain_no_seat

    serving = [seat for seat in seats if step.queue in seat.queues]
    if not serving and step.queue == PURE:
        return f"{NO_ROUTER}; {START_ROUTER}"
    if not serving:
        return explain_no_seat(step.queue, [seat for seat in seats if seat.kind != "router"])
    reasons = []
    for seat in serving:
        if seat.seat in shortfalls:
            reasons.append(f"{seat.seat}: {shortfalls[seat.seat]}")
        elif seat.state != "ready":
            reasons.append(f"{seat.seat} is {seat.state}" + (f": {seat.reason}" if seat.reason else ""))
        else:
            meter = _find_short_budget(seat, step, estimate)
            reasons.append(describe_shortage(meter, seat.seat) if meter else f"{seat.seat} is excluded")
    return "; ".join(list(dict.fromkeys(reasons))[:MAX_SEATS])  # seats with the same reason are listed once


def _list_retries(plan: Plan) -> list[dict[str, Any]]:
    return [
        {"path": scope.path, "max_attempts": scope.max_attempts, "steps": [step for step, _ in scope.steps]}
        for scope in plan.scopes
    ]


def _print_hidden(count: int, noun: str) -> None:
    """Say how many more there are, if any."""
    if count > 0:
        typer.echo(f"and {count} more {noun}; --json shows all")


def _format_steps(numbers: Sequence[int]) -> str:
    """Format the numbers of steps as ranges, `0-98,103`; of many ranges only the first."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    texts = [
        f"{first}-{last}" if last > first + 1 else ",".join(map(str, range(first, last + 1)))
        for first, last in ranges[:MAX_RANGES]
    ]
    hidden = sum(last - first + 1 for first, last in ranges[MAX_RANGES:])
    return ",".join(texts) + (f" and {hidden} more" if hidden else "") or "-"


def _format_stages(step: dict[str, Any]) -> str:
    names = " + ".join(stage["name"] for stage in step["stages"]) or "(only a value)"
    arm = step["arm"]
    condition = "" if arm is None else f" (if step {arm['of']} is {'true' if arm['where'] else 'not true'})"
    return label_stage(step["path"], names) + condition


def _format_queue(step: dict[str, Any]) -> str:
    queue, others = format_queue(step["queue"]), len(step["queues"]) - 1
    return f"{queue} (of {others + 1})" if others else queue


def _format_seats(step: dict[str, Any]) -> str:
    if step["queue"] == PURE:
        if not step["seats"]:
            return "none"
        return "a slot or router" if step["after"] else "a router"
    return ", ".join(step["seats"][:MAX_SEATS]) + (" …" if len(step["seats"]) > MAX_SEATS else "") or "none"


def _format_estimate(step: dict[str, Any]) -> str:
    parts = [f"{step['tokens']} tokens"] if step["tokens"] else []
    if step["gpu_seconds"]:
        parts.append(f"{step['gpu_seconds']:.12g} GPU seconds")
    if step["micro_dollars"]:
        parts.append(format_money(step["micro_dollars"]))
    return ", ".join(parts) or "-"
