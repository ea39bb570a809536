"""`gridq chaos`: run a grid on this machine under faults, then audit it. The suite is part of the
checkout.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from gridq.cli.exit_codes import BREACH, EPILOG, DebugOption, JsonOption
from gridq.cli.output import print_json
from gridq.errors import ConfigError

app = typer.Typer()

MIN_SECONDS = 20.0
FAULT_INTERVAL_SECONDS = 1.5
STAGES_PER_SECOND = 20


@app.command(epilog=EPILOG, short_help="Test a grid on this machine under faults, then audit it.")
def chaos(
    *,
    stages: Annotated[
        int, typer.Option("--stages", min=1, max=100_000, help="Number of stages to run.")
    ] = 300,
    seed: Annotated[
        int | None,
        typer.Option("--seed", help="Seed of the jobs and faults. Default: random.", show_default=False),
    ] = None,
    faults: Annotated[
        str, typer.Option("--faults", metavar="NAME,…", help="Faults to inject: all, none, or a list.")
    ] = "all",
    seconds: Annotated[
        float | None,
        typer.Option(
            "--seconds",
            min=1,
            max=86_400,
            help="Duration of the load and the faults. Default: 1 per 20 stages, at least 20.",
            show_default=False,
        ),
    ] = None,
    every: Annotated[
        float, typer.Option("--every", min=0.1, max=86_400, help="Average seconds between two faults.")
    ] = FAULT_INTERVAL_SECONDS,
    machines: Annotated[
        int, typer.Option("--machines", min=1, max=20, help="Number of machines, with two seats each.")
    ] = 3,
    routers: Annotated[int, typer.Option("--routers", min=1, max=10, help="Number of routers.")] = 2,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the logs even if no rule is broken.")] = False,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Start a test grid here (a server, routers and the workers of several machines), run graphs with every
    operator on it while programs are killed, stopped, drained and disconnected, then audit the result.

    The same seed gives the same jobs and faults. The exit code is 1 if a rule is broken; the logs are kept
    then. ~/.gridq is not touched. The command needs a checkout of gridq: the suite is not part of the
    package.
    """
    import secrets

    from workers.supervisor.signals import exit_on_signals

    add_checkout_to_path()
    from tests.chaos import plan as plans
    from tests.chaos.layout import make_layout
    from tests.chaos.report import print_result, to_json
    from tests.chaos.run import max_run_seconds, run

    kinds = plans.parse_faults(faults)
    if seed is None:
        seed = secrets.randbelow(1_000_000)
    if seconds is None:
        seconds = max(MIN_SECONDS, stages / STAGES_PER_SECOND)
    plan = plans.make_plan(stages, seed, seconds, kinds, every)

    def log(text: str) -> None:
        typer.echo(text, err=True)

    log(f"Seed {seed}: {len(plan.jobs)} jobs, {plan.stages} stages, {len(plan.faults)} faults, {seconds:g} s")
    log(f"To repeat: gridq chaos --stages {stages} --seed {seed} --seconds {seconds:g} --faults {faults} "
        f"--every {every:g} --machines {machines} --routers {routers}")  # fmt: skip
    log(f"Takes at most {max_run_seconds(seconds):.0f} s")
    with exit_on_signals():
        result = run(plan, layout=make_layout(machines, plan), routers=routers, keep=keep, report=log)
    if json:
        print_json(to_json(result))
    else:
        print_result(result)
    if result.broken:
        raise typer.Exit(BREACH)


def add_checkout_to_path(root: Path = Path(__file__).parents[2]) -> None:
    """Make the package `tests.chaos` of the checkout at `root` importable. ConfigError: `root` is not one."""
    if not (root / "tests" / "chaos" / "run.py").is_file():
        raise ConfigError(
            "gridq chaos needs a checkout of gridq",
            {
                "path": str(root),
                "reason": "the suite in tests/chaos is not part of the installed package",
                "fix": "clone the repository and install it with pip install -e '.[dev]'",
            },
        )
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
