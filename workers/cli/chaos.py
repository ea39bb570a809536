"""`gridq chaos`: a grid on this machine under faults, and an audit of what is left."""

from __future__ import annotations

from typing import Annotated

import typer

from gridq.cli.exit_codes import BREACH, EXITS, AsJson, Debug
from gridq.cli.output import echo_json

app = typer.Typer()

SHORTEST = 20.0
EVERY = 1.5
STAGES_A_SECOND = 20


@app.command(epilog=EXITS, short_help="Attack a grid on this machine, and audit what is left.")
def chaos(
    *,
    stages: Annotated[
        int, typer.Option("--stages", min=1, max=100_000, help="How many stages to run.")
    ] = 300,
    seed: Annotated[
        int | None,
        typer.Option("--seed", help="Of jobs and faults; a random one without it.", show_default=False),
    ] = None,
    faults: Annotated[
        str, typer.Option("--faults", metavar="NAME,…", help="Which faults: all, none, or some.")
    ] = "all",
    seconds: Annotated[
        float | None,
        typer.Option(
            "--seconds",
            min=1,
            max=86_400,
            help="How long jobs are submitted and faults go on; else a second for 20 stages, 20 at least.",
            show_default=False,
        ),
    ] = None,
    every: Annotated[
        float, typer.Option("--every", min=0.1, max=86_400, help="Seconds between two faults, on average.")
    ] = EVERY,
    machines: Annotated[
        int, typer.Option("--machines", min=1, max=20, help="Machines, with two seats each.")
    ] = 3,
    routers: Annotated[int, typer.Option("--routers", min=1, max=10, help="Routers.")] = 2,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the folder with the logs in any case.")] = False,
    json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Start a server, routers and several machines on this one, run graphs of every operator on them while
    programs are killed, stopped, drained and cut off, and then audit what is left.

    The same seed gives the same jobs and faults. Exit code 1 where a rule is broken; the logs are kept then.
    ~/.gridq is not touched.
    """
    import secrets

    from workers.chaos import plan as plans
    from workers.chaos.layout import witnessed
    from workers.chaos.run import longest, run
    from workers.chaos.show import as_json, show
    from workers.supervisor.signals import ended_by_signals

    kinds = plans.chosen(faults)
    chosen = secrets.randbelow(1_000_000) if seed is None else seed
    lasts = max(SHORTEST, stages / STAGES_A_SECOND) if seconds is None else seconds
    plan = plans.make(stages, chosen, lasts, kinds, every)

    def tell(text: str) -> None:
        typer.echo(text, err=True)

    tell(
        f"Seed {chosen}: {len(plan.jobs)} jobs, {plan.stages} stages, {len(plan.faults)} faults, {lasts:g} s"
    )
    tell(f"Again:  gridq chaos --stages {stages} --seed {chosen} --seconds {lasts:g} --faults {faults} "
         f"--every {every:g} --machines {machines} --routers {routers}")  # fmt: skip
    tell(f"It takes {longest(lasts):.0f} s at most")
    with ended_by_signals():
        result = run(plan, layout=witnessed(machines, plan), routers=routers, keep=keep, tell=tell)
    if json:
        echo_json(as_json(result))
    else:
        show(result)
    if result.broken:
        raise typer.Exit(BREACH)
