"""Run Hypothesis state machines with the tests' settings."""

from __future__ import annotations

import os
from collections.abc import Callable

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

LONG = os.environ.get("GRIDQ_MODEL") == "long"
"""Whether to search long and with a new random seed (GRIDQ_MODEL=long)."""


def run(machine: Callable[[], RuleBasedStateMachine], *, runs: int = 60, calls: int = 40) -> None:
    """Run a machine `runs` times with up to `calls` calls, always the same ones. With LONG, twenty times as
    many.
    """
    run_state_machine_as_test(
        machine,  # type: ignore[arg-type]
        settings=settings(
            max_examples=runs * 20 if LONG else runs,
            stateful_step_count=calls * 2 if LONG else calls,
            derandomize=not LONG,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=LONG,
        ),
    )
