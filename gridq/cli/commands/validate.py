"""Check a graph without a server, and show what it needs: `gridq validate`."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import typer

from gridq.cli.exit_codes import EPILOG, DebugOption, JsonOption, to_one_line
from gridq.cli.inputs import GraphArgument, StagesOption, apply_stages_option, locate_graph_errors, read_graph
from gridq.cli.output import format_count, print_json

if TYPE_CHECKING:
    from gridq.config.settings import Settings
    from gridq.protocol.models import Json

app = typer.Typer()


@app.command(epilog=EPILOG, short_help="Check a graph without a server.")
def validate(
    graph: GraphArgument, stages: StagesOption = None, json: JsonOption = False, debug: DebugOption = False
) -> None:
    """Check a graph: operators, stages, types and plan. Nothing is sent anywhere.

    Stages that only other machines offer are unknown here. Add their files with --stages.
    """
    from gridq.config.settings import settings

    text = read_graph(graph)
    with locate_graph_errors(graph):
        report = validate_graph(text, apply_stages_option(settings(), stages))
    if json:
        print_json(report)
        return
    chains = {", else ".join(chain["queues"]): chain["steps"] for chain in report["chains"]}
    width = max(map(len, chains))
    typer.echo(f"valid        {report['description'] or graph}")
    typer.echo(f"composition  {report['composition']}")
    typer.echo(f"stages       {report['stages']} in {format_count(report['steps'], 'step')}")
    typer.echo(f"effects      {', '.join(report['effects']) or 'none'}")
    for number, (queue, count) in enumerate(chains.items()):
        typer.echo(f"{'' if number else 'queues':11}  {queue:{width}}  {format_count(count, 'step')}")
    if report["needed_from_input"]:
        typer.echo(f"from input   {to_one_line(', '.join(report['needed_from_input']))}: no config sets it")
    if report["ignored"]:
        typer.echo(f"ignored      {to_one_line(', '.join(report['ignored']))}: the nodes have no such field")


def validate_graph(text: str, config: Settings) -> dict[str, Json]:
    """Return what a graph consists of and needs, as JSON.

    `queues` counts the steps by their first queue, `chains` by all their queues, with the fallbacks.
    `ignored`: paths of keys that mean nothing. `needed_from_input`: paths of options that a stage needs and
    only its input could have. Raises
    GraphError or InputTooLarge if the graph is invalid.
    """
    from gridq.graph.canonical import compute_composition_id
    from gridq.graph.nodes import list_ignored
    from gridq.graph.validate import list_needed_from_input
    from gridq.profiles.profile import load_profiles
    from gridq.submission.planning import compile_text, load_local_catalogue
    from gridq.submission.request import encode_graph

    profiles = load_profiles(config.profiles)
    encode_graph(text, config)
    catalogue = load_local_catalogue(config, profiles)
    parsed, output, plan = compile_text(text, catalogue, config, profiles)
    return {
        "composition": compute_composition_id(parsed),
        "description": parsed.description,
        "stages": sum(len(step.ops) for step in plan.steps),
        "steps": len(plan.steps),
        "output": output.to_json(),
        "ignored": list_ignored(parsed),
        "needed_from_input": list_needed_from_input(parsed, catalogue),
        "effects": sorted({_format_effect(effect) for effect in plan.effects}),
        "queues": dict(sorted(Counter(step.queue for step in plan.steps).items())),
        "chains": [
            {"queues": list(links), "steps": count}
            for links, count in sorted(Counter(step.queues for step in plan.steps).items())
        ],
    }


def _format_effect(effect: Json) -> str:
    """Format an effect: `Llm(model=any)`."""
    fields = ", ".join(f"{name}={value}" for name, value in effect.items() if name != "effect")
    return f"{effect['effect']}({fields})" if fields else str(effect["effect"])
