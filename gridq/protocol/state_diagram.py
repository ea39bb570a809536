"""docs/reference/states.md as text, made from the tables of `gridq.protocol.states`.

`python -m gridq.protocol.state_diagram > docs/reference/states.md`, or `make states`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

from gridq.protocol.states import ATTEMPT_MOVES, ATTEMPTS, JOB_MOVES, JOBS, STAGE_MOVES, STAGES, Moves

HEAD = """# The states of jobs, stages and attempts

Made by `make states` from `gridq/protocol/states.py`; a test holds this file to the code. An arrow names the
scripts of `gridq/store/lua` that make the move. Each script is one step on the server: nobody sees a job, a
stage or an attempt between two states, and every move that the tests of the protocol see is one of these.
"""

ABOUT_JOBS = """A job gets its final state once, in one script. It is kept as long as the result.
"""

ABOUT_STAGES = """A Retry that starts again takes all its stages back to where they began, whatever they
had reached. What had not ended when its job ended is withdrawn with it. A stage whose lease was lost may
still be recorded by the attempt that lost it, as long as nobody else has claimed it: hence the arrow from
ready to done.
"""

ABOUT_ATTEMPTS = """An attempt is one claim of a stage, known by `(job, stage, epoch of its Retry, number,
nonce)`. Its seat is charged once for what it used, whichever way it ended; the agent is charged for what is
recorded.
"""


def draw_diagram(states: Iterable[StrEnum], moves: Moves) -> str:
    """A Mermaid state diagram; states that nothing leaves end in the final circle."""
    left = {before for before, _ in moves}
    lines = ["```mermaid", "stateDiagram-v2"]
    for (before, after), scripts in moves.items():
        lines.append(f"    {before or '[*]'} --> {after}: {', '.join(sorted(set(scripts)))}")
    lines += [f"    {state} --> [*]" for state in states if state not in left]
    return "\n".join([*lines, "```"])


def format_section(title: str, about: str, states: Mapping[Any, str], moves: Moves) -> str:
    """What each state means, and the diagram."""
    rows = "\n".join(f"| {state} | {meaning} |" for state, meaning in states.items())
    return f"\n## {title}\n\n{about}\n| state | |\n|---|---|\n{rows}\n\n{draw_diagram(states, moves)}\n"


def build_document() -> str:
    """The whole of docs/reference/states.md."""
    return (
        HEAD
        + format_section("Jobs", ABOUT_JOBS, JOBS, JOB_MOVES)
        + format_section("Stages", ABOUT_STAGES, STAGES, STAGE_MOVES)
        + format_section("Attempts", ABOUT_ATTEMPTS, ATTEMPTS, ATTEMPT_MOVES)
    )


if __name__ == "__main__":
    print(build_document(), end="")
