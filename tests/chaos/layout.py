"""The machines and seats of a chaos grid, and its limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.endpoints.calls import MODEL
from tests.chaos.limits import Bound, format_quotas_file, format_seat_limits
from tests.chaos.plan import LIMITED_AGENTS, Plan
from tests.chaos.profile import MAX_MICRO_DOLLARS, PROFILE, RARE
from tests.chaos.witness import tokens
from tests.fakes.vendor_apis import ProtocolModel

CONCURRENCY = 4
BUDGET = 1_000_000
"""Monthly dollars of each bench seat: never used up, but counted."""
AMPLE_DOLLARS = 1_000_000
"""Monthly dollars of the agent `poor`, unless a fault takes its money."""
OWNER = "alice"
"""The owner of the first machine's seat."""
TEAM = "research"
MODEL_SEAT = "model"
"""The name and the sort of each machine's model seat."""
SILENCE_SECONDS = 3.0
"""Seconds without a byte after which a model seat gives up a call."""
MAX_ATTEMPTS = 8
"""More attempts than a model call needs on average."""
MIN_STAGES = 10
"""Number of stages that the smallest budget of money or tokens admits at once."""


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine. `seats`: name → sort; seats of one sort can replace each other. `terms`: the text of its
    seats.toml, with placeholders for the URLs of endpoints (`make_placeholder`).
    """

    name: str
    seats: Mapping[str, str]
    terms: str


@dataclass(frozen=True, slots=True)
class Layout:
    """All machines, and the configuration of all programs.

    `profiles`, `stages`, `stages_dir`: the settings of these names. `env`: more environment variables.
    `quotas`: the text of the quotas file, with `{dollars}` for the money of the agent `poor`. `limits`: the
    limits in that file and in the machines' files. `owners`: by the ids of seats. `midnight`: seconds from
    the grid's start to the start of a day; None: days of UTC. `always_restarted`: seats that are always
    restarted. `endpoints`: the API formats of model endpoints by name, each of which is also the id of its
    seat. `answer_seconds`: the time that their answers take while they are healthy.
    """

    machines: tuple[Machine, ...]
    profiles: tuple[str, ...]
    stages: tuple[str, ...] = ()
    stages_dir: Path | None = None
    quotas: str = format_quotas_file((), {})
    env: Mapping[str, str] = field(default_factory=dict)
    limits: tuple[Bound, ...] = ()
    owners: Mapping[str, str] = field(default_factory=dict)
    midnight: float | None = None
    always_restarted: frozenset[str] = frozenset()
    endpoints: Mapping[str, ProtocolModel] = field(default_factory=dict)
    answer_seconds: float = 0.0


def make_layout(machines: int, plan: Plan) -> Layout:
    """Return machines with a bench seat, a local seat and a model seat each, whose stages write to the
    witness's file or call an endpoint, and limits that restrict the plan. Some stages prefer the first
    machine's bench seat. The last machine's has twice the slots, and runs what the budgets of the others do
    not admit. Its endpoint stays sound.
    """
    limits = make_limits(machines, plan)
    seats = {"bench": "bench", "local": "local", MODEL_SEAT: MODEL_SEAT}
    endpoints: dict[str, ProtocolModel] = {}
    made = []
    for at in range(1, machines + 1):
        lines = [f"budget = {BUDGET}", format_seat_limits(f"m{at}.bench", limits)]
        lines += [f'slugs = ["{RARE}"]', f'owner = "{OWNER}"'] if at == 1 else []
        concurrency = CONCURRENCY if at < machines else 2 * CONCURRENCY
        text = "\n".join(
            ["[bench]", f"concurrency = {concurrency}", *lines, "[local]", f"concurrency = {CONCURRENCY}", ""]
        )
        endpoint = f"m{at}.{MODEL_SEAT}"
        endpoints[endpoint] = "anthropic" if at == 2 else "openai"
        text += format_model_seat(endpoint, endpoints[endpoint], (MODEL,))
        made.append(Machine(f"m{at}", seats, text))
    return Layout(
        machines=tuple(made),
        profiles=(PROFILE, "llm"),
        stages=("tests.chaos.stages",),
        quotas=format_quotas_file(limits, dict.fromkeys(LIMITED_AGENTS, TEAM)),
        limits=limits,
        owners={"m1.bench": OWNER},
        midnight=plan.seconds / 2,
        always_restarted=frozenset({f"m{machines}.bench", f"m{machines}.{MODEL_SEAT}"}),
        endpoints=endpoints,
    )


def make_placeholder(endpoint: str) -> str:
    """Return the URL that stands for an endpoint's until it listens."""
    return f"http://{endpoint}.invalid/v1"


def format_model_seat(
    endpoint: str, api: ProtocolModel, models: Sequence[str], concurrency: int = CONCURRENCY
) -> str:
    """Return the table of a model seat in its machine's seats.toml. `endpoint`: its id. It costs nothing, so
    that what it does not report cannot exceed a budget.
    """
    listed = ", ".join(f'{{name = "{model}"}}' for model in models)
    return f"""\
[[llm]]
name = "{endpoint.partition(".")[2]}"
url = "{make_placeholder(endpoint)}"
api = "{api}"
allow_loopback = true
billing = "subscription"
concurrency = {concurrency}
silence = {SILENCE_SECONDS:g}
models = [{listed}]
"""


def make_limits(machines: int, plan: Plan) -> tuple[Bound, ...]:
    """Return limits for a plan: shares of what its stages use in total, and in a minute. The limits of all
    machines together, and those of the last one alone, leave enough for every job to end.
    """
    spends = plan.spends
    minute = min(1.0, 60 / plan.seconds)  # of the plan, which is as even over its time
    # About two thirds of it is used: jobs fail, are cancelled and refused. A plan of less than a minute must
    # not wait for the next window.
    used = minute * (0.85 if plan.seconds > 60 else 1.3)

    def money(part: float) -> int:
        return max(round(sum(spends) * part), MIN_STAGES * MAX_MICRO_DOLLARS)

    def words(part: float) -> int:
        return max(
            round(sum(sum(tokens(spend)) for spend in spends) * part),
            MIN_STAGES * sum(tokens(MAX_MICRO_DOLLARS)),
        )

    def requests(part: float) -> int:
        return max(round(len(spends) * part), MIN_STAGES)

    asked = plan.asked * MAX_ATTEMPTS

    last = f"seat m{machines}.bench"
    limits = [
        Bound("grid", "dollars", money(used), "1m"),
        Bound("grid", "requests", requests(2) + asked, "day"),
        Bound(last, "dollars", money(0.9 * used), "1m", own=False),
        Bound(last, "tokens", words(3), "5h"),
        Bound("agent thrifty", "dollars", money(0.02), "month", key="monthly_dollars"),
        Bound("agent thrifty", "dollars", money(0.012), "day"),
        Bound("agent thrifty", "tokens", words(0.1), "week"),
        Bound(f"team {TEAM}", "dollars", money(0.015), "day"),
        Bound(f"team {TEAM}", "tokens", words(0.02), "day"),
        Bound("agent cat", "jobs", max(len(plan.jobs) // 60, 1), "month", key="monthly_jobs"),
        Bound("agent cat", "jobs", max(len(plan.jobs) // 100, 1), "day"),
    ]
    if machines > 1:
        limits += [
            Bound("seat m1.bench", "dollars", money(0.22 * minute), "1m"),
            Bound("seat m1.bench", "requests", requests(0.16), "5h"),
            Bound("seat m1.bench", "tokens", words(0.08), "day", own=False),
            Bound(f"owner {OWNER}", "dollars", money(0.25 * minute), "1m"),
        ]
    for at in range(2, machines):
        seat = f"seat m{at}.bench"
        limits += [
            Bound(seat, "requests", requests(0.2 * minute), "minute", own=False, key="requests_per_minute"),
            Bound(seat, "tokens", words(0.25 * minute), "1m", own=False, key="tokens_per_minute"),
            Bound(seat, "dollars", money(0.08), "day"),
        ]
    return tuple(limits)
