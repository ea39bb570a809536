"""How the tests' state machines are run."""

from __future__ import annotations

import os
from collections.abc import Callable

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

LONG = os.environ.get("GRIDQ_MODEL") == "long"
"""Look for long, elsewhere each time, as nobody waits for it."""


def run(machine: Callable[[], RuleBasedStateMachine], *, runs: int = 60, calls: int = 40) -> None:
    """`runs` runs of up to `calls` calls each, the same ones each time; twenty times as many where LONG."""
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
