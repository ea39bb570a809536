"""How many tokens the stages of a job will use, as far as is known when it is admitted: what the budgets of
their seats hold for them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gridq.graph.plan import Plan, Step
from gridq.profiles.profile import Profile
from gridq.protocol import queue_names
from gridq.protocol.meters import UsageEstimate
from gridq.protocol.models import MAX_USAGE, StageCall

BYTES_A_TOKEN = 4
"""Of JSON: English prose has somewhat more, code and other languages somewhat less."""

LONGEST = 40 * 86_400
"""Seconds that a stage is expected to run at most, whatever its time-out says."""

_SAID = re.compile(rb'"max(?:_completion|_output)?_tokens"\s*:\s*([1-9]\d{0,7})\b')
"""How long an answer may be, as the APIs of models say it, in a request that is a job's input."""


@dataclass(frozen=True, slots=True)
class TokenEstimate:
    """What a step will use beside the job's input, where it `reads_input`; `timeout_ms`: of its own."""

    step: int
    tokens_in: int
    tokens_out: int
    reads_input: bool
    timeout_ms: int | None = None


def estimate_tokens(plan: Plan, profiles: Mapping[str, Profile]) -> tuple[TokenEstimate, ...]:
    """Of each step of which something is known: its texts as its profile counts them, the longest answers of
    those before it that it reads, and its own; its time-out.
    """
    found: dict[int, TokenEstimate] = {}
    for index, step in enumerate(plan.steps):
        profile = profiles.get(queue_names.get_kind(step.queue))
        tokens_in, tokens_out = _of(step, profile) if profile is not None else (0, 0)
        timeout = _timeout_ms(step) if profile is not None else None
        if tokens_in or tokens_out:
            tokens_in += sum(found[before].tokens_out for before in step.refs if before in found)
        if tokens_in or tokens_out or timeout:
            found[index] = TokenEstimate(index, tokens_in, tokens_out, step.reads_input, timeout)
    return tuple(found.values())


def format_expected(expected: Mapping[int, UsageEstimate]) -> list[str]:
    """The job's fields that say so to the scripts: `tk:<step>` → "in out", or "in out timeout" where it has a
    time-out of its own.
    """
    return [word for step, expects in expected.items() for word in (f"tokens:{step}", expects.to_text())]


def expect_usage(found: Sequence[TokenEstimate], value: bytes, length: int) -> dict[int, UsageEstimate]:
    """What each step will use in a job with an input of that `length`; `value` may only be a link to it."""
    if not found:
        return {}
    reads = any(guess.reads_input for guess in found)
    said = max((int(number) for number in _SAID.findall(value)), default=0) if reads else 0
    steps = {}
    for guess in found:
        tokens_in, tokens_out = guess.tokens_in, guess.tokens_out
        if guess.reads_input and (tokens_in or tokens_out):
            tokens_in += length // BYTES_A_TOKEN
            tokens_out = said or tokens_out
        steps[guess.step] = UsageEstimate(tokens_in, tokens_out, guess.timeout_ms)
    return steps


def _timeout_ms(step: Step) -> int | None:
    """Of all its stages together, where each has one of its own."""
    seconds = [op.timeout for op in step.ops]
    return int(sum(min(each or 0, LONGEST) for each in seconds) * 1000) if seconds and all(seconds) else None


def _of(step: Step, profile: Profile) -> tuple[int, int]:
    tokens_in = tokens_out = 0
    for op in step.ops:
        call = StageCall(id=op.id, name=op.name, path=op.path, implementation=op.implementation)
        estimate = profile.estimate(call, op.input[2] if op.input[0] == "cfg" else {})
        tokens_in += min(estimate.tokens_in, MAX_USAGE)
        tokens_out += min(estimate.tokens_out, MAX_USAGE)
    return tokens_in, tokens_out
