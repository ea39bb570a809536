"""Estimate the tokens and GPU seconds that a job's stages will use, which budgets reserve."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gridq.graph.plan import MAX_TIMEOUT_SECONDS, Plan, Step
from gridq.profiles.profile import Profile
from gridq.protocol import queue_names
from gridq.protocol.meters import UsageEstimate
from gridq.protocol.models import MAX_USAGE, Estimate

JSON_BYTES_PER_TOKEN = 4
"""English prose has somewhat more, code and other languages somewhat less."""

_MAX_TOKENS = re.compile(rb'"max(?:_completion|_output)?_tokens"\s*:\s*([1-9]\d{0,7})\b')
"""The longest answer, as requests of model APIs state it, in a job's input."""


@dataclass(frozen=True, slots=True)
class TokenEstimate:
    """The estimate of a step, without the job's input if it `reads_input`. `timeout_ms`: its own timeout.
    `gpu_ms`: for how many ms it declares to use a device.
    """

    step: int
    tokens_in: int
    tokens_out: int
    reads_input: bool
    timeout_ms: int | None = None
    gpu_ms: int | None = None


def estimate_tokens(plan: Plan, profiles: Mapping[str, Profile]) -> tuple[TokenEstimate, ...]:
    """Estimate what each step will use, as far as it is known.

    The input is the step's own texts, as its profile counts them, and the longest answers of the steps it
    reads.
    """
    found: dict[int, TokenEstimate] = {}
    for index, step in enumerate(plan.steps):
        profile = profiles.get(queue_names.get_kind(step.queue))
        expected = [] if profile is None else _list_estimates(step, profile)
        tokens_in = sum(min(each.tokens_in, MAX_USAGE) for each in expected)
        tokens_out = sum(min(each.tokens_out, MAX_USAGE) for each in expected)
        declared = [each.gpu_seconds for each in expected if each.gpu_seconds is not None]
        gpu_ms = math.ceil(min(sum(declared) * 1000, MAX_USAGE)) if declared else None
        timeout = _sum_timeouts_ms(step) if profile is not None else None
        if tokens_in or tokens_out:
            tokens_in += sum(found[before].tokens_out for before in step.refs if before in found)
        if tokens_in or tokens_out or timeout or gpu_ms:
            found[index] = TokenEstimate(index, tokens_in, tokens_out, step.reads_input, timeout, gpu_ms)
    return tuple(found.values())


def format_expected(expected: Mapping[int, UsageEstimate]) -> list[str]:
    """Return the job's fields: `tokens:<step>` and `UsageEstimate.to_text`, in turn."""
    return [word for step, usage in expected.items() for word in (f"tokens:{step}", usage.to_text())]


def expect_usage(estimates: Sequence[TokenEstimate], value: bytes, length: int) -> dict[int, UsageEstimate]:
    """Estimate what each step will use with an input of `length` bytes. `value` may be a link to it."""
    if not estimates:
        return {}
    reads = any(one.reads_input for one in estimates)
    stated = max((int(number) for number in _MAX_TOKENS.findall(value)), default=0) if reads else 0
    steps = {}
    for one in estimates:
        tokens_in, tokens_out = one.tokens_in, one.tokens_out
        if one.reads_input and (tokens_in or tokens_out):
            tokens_in += length // JSON_BYTES_PER_TOKEN
            tokens_out = stated or tokens_out
        steps[one.step] = UsageEstimate(tokens_in, tokens_out, one.timeout_ms, one.gpu_ms)
    return steps


def _sum_timeouts_ms(step: Step) -> int | None:
    """Return the timeouts of a step's stages together; None unless each has one."""
    seconds = [op.timeout for op in step.ops]
    if not seconds or not all(seconds):
        return None
    return int(sum(min(each or 0, MAX_TIMEOUT_SECONDS) for each in seconds) * 1000)


def _list_estimates(step: Step, profile: Profile) -> list[Estimate]:
    """Return what each stage of a step is expected to use, by its profile."""
    return [profile.estimate(op.make_call(), op.input[2] if op.input[0] == "cfg" else {}) for op in step.ops]
