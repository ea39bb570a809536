"""`gridq explain`: how a graph would run: its steps, what each needs and waits for, who could run it now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from gridq.cli.exit_codes import EPILOG, DebugOption, JsonOption, to_one_line
from gridq.cli.grid import open_broker_client
from gridq.cli.inputs import GraphArgument, StagesOption, apply_stages_option, locate_graph_errors, read_graph
from gridq.cli.output import format_money, make_console, make_table, print_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gridq.client import BrokerClient
    from gridq.config.settings import Settings
    from gridq.graph.plan import Plan, Step
    from gridq.profiles.profile import Profile
    from gridq.protocol.meters import Meter, UsageEstimate
    from gridq.seats.registry import LiveSeat
    from gridq.submission.allowance import Allowance

app = typer.Typer()

PURE = "gridq:pure"

SEATS = 3
"""Seats named in one cell."""


@app.command(epilog=EPILOG, short_help="Show a graph's plan, and who could run each step now.")
def explain(
    graph: GraphArgument,
    stages: StagesOption = None,
    agent: Annotated[
        str | None,
        typer.Option("--agent", metavar="NAME", help="Whose quota to look at; else your key's agent."),
    ] = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Show how a graph would run: each step with its place in the graph, the steps it waits for, the queue it
    needs, what it is estimated to cost, and which live seats could run it now, or why nobody could; and
    whether its agent's key and quota let it begin.

    Nothing is submitted. Pure stages that stand side by side are one step.
    """
    from gridq.config.settings import settings

    text = read_graph(graph)
    config = apply_stages_option(settings(), stages)
    with open_broker_client(config) as client, locate_graph_errors(graph):
        report = examine(client, text, config, agent)
    if json:
        print_json(report)
        return
    table = make_table("#", "stage", "after", "queue", "estimate", "who could", gap=1)
    for step in report["steps"]:
        table.add_row(
            str(step["step"]),
            _names(step),
            ",".join(map(str, step["after"])) or "-",
            _queue(step),
            _estimate(step),
            _who(step),
        )
    make_console().print(table)
    told = set()
    for step in report["steps"]:
        if step["nobody"] and (step["queue"], step["nobody"]) not in told:
            told.add((step["queue"], step["nobody"]))
            typer.echo(f"Nobody could run {step['queue']} now (step {step['step']}): {step['nobody']}")
    if report["refusal"]:
        whose = f"A job of the agent {report['agent']!r}" if report["agent"] else "The job"
        typer.echo(f"{whose} would be refused now: {to_one_line(report['refusal']['told'])}")
    elif agent is not None:
        typer.echo(f"The quota of the agent {agent!r} allows it now.")
    typer.echo(f"The answer is that of step {report['answer']}.")


def examine(client: BrokerClient, text: str, config: Settings, agent: str | None = None) -> dict[str, Any]:
    """The plan of a graph as JSON, and whether `agent` may submit it; None: who has these settings.
    GraphError, InputTooLarge, ConfigError: what is wrong with it.
    """
    from dataclasses import replace

    from gridq.graph.canonical import composition_id
    from gridq.graph.catalogue import StageSpec
    from gridq.profiles.profile import load
    from gridq.protocol.meters import NO_ESTIMATE
    from gridq.seats import registry
    from gridq.store.connection import translated
    from gridq.submission.allowance import allowance
    from gridq.submission.estimates import estimate_tokens, expect_usage
    from gridq.submission.matching import find_demands
    from gridq.submission.planning import compile_text, load_local_catalogue
    from gridq.submission.request import encode_graph

    profiles = load(config.profiles)
    encode_graph(text, config)
    with translated(client.url):
        published = registry.read_published_stages(client.redis, client.keys)
    catalogue = load_local_catalogue(config, profiles).extended(map(StageSpec.from_json, published))
    graph, output, plan = compile_text(text, catalogue, config, profiles)
    seats = client.seats()
    demands = {want.step: want.demand for want in find_demands(plan, profiles)}
    guessed = expect_usage(estimate_tokens(plan, profiles), b"", 0)
    money = sum(step.micro_dollars for step in plan.steps)
    tokens = sum(each.tokens for each in guessed.values())
    with translated(client.url):
        allowed = allowance(client.scripts, config, agent, money, tokens)
    kept = _kept_from(allowed, seats)
    steps = []
    for index, made in enumerate(plan.steps):
        expects = guessed.get(index, NO_ESTIMATE)
        links = [
            _link(replace(made, queue=queue), demands.get(index), expects, seats, profiles, kept=kept)
            for queue in made.links
        ]
        step, lacking, able = next((link for link in links if link[2]), links[0])
        reasons = {} if able else dict.fromkeys(_nobody(at, expects, seats, lack) for at, lack, _ in links)
        steps.append(
            {
                "step": index,
                "path": step.path,
                "stages": [{"path": op.path, "name": op.name, "runs": op.implementation} for op in step.ops],
                "after": list(step.after),
                "arm": None if step.guard is None else {"of": step.guard[0], "where": step.guard[1]},
                "queue": step.queue,
                "links": list(made.links),
                "micro_dollars": step.micro_dollars,
                "tokens": expects.tokens,
                "seats": [seat.seat for seat in able],
                "free": sum(seat.free for seat in able),
                "lacking": lacking,
                "nobody": "; ".join(reasons),
            }
        )
    return {
        "composition": composition_id(graph),
        "description": graph.description,
        "output": output.to_json(),
        "answer": plan.answer,
        "steps": steps,
        "retries": _retries(plan),
        "agent": allowed.agent,
        "team": allowed.team,
        "refusal": _refusal(allowed),
    }


def _kept_from(allowed: Allowance, seats: Sequence[LiveSeat]) -> dict[str, str]:
    """The seats that are lent to other agents, with whom to; none where the agent is not known."""
    agent, team = allowed.agent, allowed.team or ""
    return {
        seat.seat: f"it is lent to {', '.join(seat.lends_to)} alone"
        for seat in seats
        if agent is not None and not seat.lent_to(agent, team)
    }


def _refusal(allowed: Allowance) -> dict[str, Any] | None:
    """What a submission would be refused with, as JSON; `told`: the same in one line."""
    error = allowed.refusal
    return None if error is None else {**error.to_record(), "told": str(error)}


def _link(
    step: Step,
    demand: Any,
    expects: UsageEstimate,
    seats: Sequence[LiveSeat],
    profiles: Mapping[str, Profile],
    *,
    kept: Mapping[str, str],
) -> tuple[Step, dict[str, str], list[LiveSeat]]:
    """(the step at one of its queues, which seats of it lack what, who could run it now). `kept`: seats that
    the agent may not use → why.
    """
    find_demands = None if demand is None else demand.link(step.queue)
    lacking = _lacking(step, find_demands, seats, profiles)
    lacking |= {
        seat.seat: kept[seat.seat] for seat in seats if step.queue in seat.queues and seat.seat in kept
    }
    able = [seat for seat in seats if step.queue in seat.queues and seat.state == "ready"]
    able = [seat for seat in able if seat.seat not in lacking and _dry(seat, step, expects) is None]
    # Least busy first, as those would take it.
    return step, lacking, sorted(able, key=lambda seat: -seat.free)


def _lacking(
    step: Step, demand: Any, seats: Sequence[LiveSeat], profiles: Mapping[str, Profile]
) -> dict[str, str]:
    """Those of the step's queue that do not meet all of its demand, with what each lacks."""
    from pydantic import ValidationError

    found: dict[str, str] = {}
    for seat in seats:
        profile = profiles.get(seat.kind)
        if demand is None or profile is None or step.queue not in seat.queues or seat.stale:
            continue
        try:
            lack = profile.shortfall(demand, profile.Capability.model_validate(seat.capability))
        except ValidationError:  # its worker is of another version: it is taken at its word
            continue
        if lack:
            found[seat.seat] = lack
    return found


def _dry(seat: LiveSeat, step: Step, expects: UsageEstimate) -> Meter | None:
    """The budget in which a seat has no room for the step."""
    from gridq.jobs.record import round_up_cost

    return seat.lacking(step.queue, round_up_cost(step.micro_dollars), expects)


def _nobody(step: Step, expects: UsageEstimate, seats: Sequence[LiveSeat], lacking: dict[str, str]) -> str:
    from gridq.protocol.meters import describe_shortage
    from gridq.seats.registry import explain_no_seat

    serving = [seat for seat in seats if step.queue in seat.queues]
    if not serving:
        return explain_no_seat(step.queue, [seat for seat in seats if seat.kind != "router"])
    reasons = []
    for seat in serving:
        if seat.seat in lacking:
            reasons.append(f"{seat.seat}: {lacking[seat.seat]}")
        elif seat.state != "ready":
            reasons.append(f"{seat.seat} is {seat.state}" + (f": {seat.reason}" if seat.reason else ""))
        else:
            meter = _dry(seat, step, expects)
            reasons.append(describe_shortage(meter, seat.seat) if meter else f"{seat.seat} is excluded")
    return "; ".join(list(dict.fromkeys(reasons))[:SEATS])  # what seats share is told once


def _retries(plan: Plan) -> list[dict[str, Any]]:
    return [
        {"path": scope.path, "max_attempts": scope.max_attempts, "steps": [step for step, _ in scope.steps]}
        for scope in plan.scopes
    ]


def _names(step: dict[str, Any]) -> str:
    from gridq.telemetry.narration import enclosing_name

    names = " + ".join(stage["name"] for stage in step["stages"]) or "(only a value)"
    place = enclosing_name(step["path"])
    arm = step["arm"]
    only = "" if arm is None else f" (if step {arm['of']} is {'true' if arm['where'] else 'not true'})"
    return (f"{place}/{names}" if place else names) + only


def _queue(step: dict[str, Any]) -> str:
    others = len(step["links"]) - 1
    return f"{step['queue']} (of {others + 1})" if others else str(step["queue"])


def _who(step: dict[str, Any]) -> str:
    if step["queue"] == PURE:
        return "a router" if step["seats"] else "nobody"
    return ", ".join(step["seats"][:SEATS]) + (" …" if len(step["seats"]) > SEATS else "") or "nobody"


def _estimate(step: dict[str, Any]) -> str:
    parts = [f"{step['tokens']} tokens"] if step["tokens"] else []
    if step["micro_dollars"]:
        parts.append(format_money(step["micro_dollars"]))
    return ", ".join(parts) or "-"
