"""The flat plan of a job, and the evaluation of its expressions.

A plan is a list of steps. A step waits until the steps of `after` are done or skipped. Then the worker that
claims it evaluates its expressions over the outputs of `refs` and runs its `ops`. Const, Parallel, Let,
Fanout, Merge and `config` become expressions; they need no step.

Expressions are JSON arrays that begin with a tag:

| expression | value |
|---|---|
| `["in"]` | the job's input |
| `["out", s]` | the output of step s |
| `["op", k]` | the output of operation k of the same, fused step |
| `["const", v]` | v |
| `["rec", {name: e}]` | the record of the values |
| `["arr", [e, …]]` | the array of the values |
| `["pick", e, name]` | the field `name` of e if e is a record that has it, else e (Parallel) |
| `["src", e, name]` | the field `name` of e if e is a record (null if it has none), else e (Merge) |
| `["let", e, {name: e}]` | the fields of e (none if e is not a record), overwritten by the bindings |
| `["cfg", e, {…}]` | the fields of e, overwritten by the stage's config; other values are wrapped first |
| `["phi", g, a, b]` | a if g is `true`, else b; only the one taken is evaluated |
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gridq.protocol.models import Effect, Json, StageCall

Expr = list[Json]

MAX_TIMEOUT_SECONDS = 40 * 86_400
"""The longest timeout of a stage. A graph that states a longer one gets this."""

WRAP_KEYS = (
    "items", "text", "data", "input", "records", "train", "document", "html", "csv", "json_str",
)  # fmt: skip
"""The keys under which `config` wraps an input that is not a record: the first that it does not have."""


@dataclass(frozen=True, slots=True)
class Op:
    """One stage of a step."""

    path: str
    id: str
    name: str
    implementation: str
    input: Expr
    effects: tuple[Mapping[str, Json], ...] = ()
    timeout: float | None = None

    def make_call(self, queue: str = "") -> StageCall:
        """Return the call that the stage's runner gets. `queue`: the one that the seat took it from."""
        return StageCall(
            id=self.id,
            name=self.name,
            path=self.path,
            implementation=self.implementation,
            effects=[Effect(**effect) for effect in self.effects],
            queue=queue,
            timeout=None if self.timeout is None else min(self.timeout, MAX_TIMEOUT_SECONDS),
        )


@dataclass(frozen=True, slots=True)
class Step:
    """The unit that a worker claims: one stage, a fused run of pure stages, or no stage (only `value`).

    The step's output is `value`, evaluated after the ops have run. `guard` is the innermost Branch arm around
    it, as (gate step, arm); `scope` is the innermost Retry. Step numbers in `after` and `refs` are smaller
    than its own. `fallbacks` are the queues it moves to, in this order, if no seat of `queue` can take it.
    """

    path: str
    queue: str
    ops: tuple[Op, ...]
    value: Expr
    after: tuple[int, ...] = ()
    refs: tuple[int, ...] = ()
    reads_input: bool = False
    guard: tuple[int, bool] | None = None
    scope: int | None = None
    micro_dollars: int = 0
    fallbacks: tuple[str, ...] = ()

    @property
    def queues(self) -> tuple[str, ...]:
        """Its queue and its fallbacks, the best first."""
        return (self.queue, *self.fallbacks)


@dataclass(frozen=True, slots=True)
class Arms:
    """The steps of both arms of the Branch whose gate is step `gate`, nested ones included."""

    gate: int
    if_true: tuple[int, ...]
    if_false: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Scope:
    """A Retry, with its steps (nested ones included), each with how many of its `after` are inside the Retry.

    Steps outside wait only for the last of them, after which none of them runs again.
    """

    path: str
    parent: int | None
    max_attempts: int
    delay_ms: int
    steps: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps of a job, ordered so that each comes after the steps that it waits for.

    `answer` is the step whose output is the job's; it has no guard.
    """

    steps: tuple[Step, ...]
    answer: int
    arms: tuple[Arms, ...] = ()
    scopes: tuple[Scope, ...] = ()
    effects: tuple[Mapping[str, Json], ...] = field(default=())


def wrap_input(value: Json, config: Mapping[str, Json]) -> dict[str, Json]:
    """Return the input record of a stage with `config`, by the graph format's rule for Stage."""
    if isinstance(value, dict):
        return {**value, **config}
    key = next((k for k in WRAP_KEYS if k not in config), "items")
    return {key: value, **config}


def evaluate(
    expr: Expr, job_input: Callable[[], Json], outputs: Callable[[int], Json], ops: Sequence[Json] = ()
) -> Json:
    """Return the value of `expr`; `outputs` and `job_input` are called only for what the taken arms need."""

    def go(e: Expr) -> Json:
        tag = e[0]
        if tag == "out":
            return outputs(e[1])
        if tag == "in":
            return job_input()
        if tag == "op":
            return ops[e[1]]
        if tag == "const":
            return e[1]
        if tag == "rec":
            return {name: go(part) for name, part in e[1].items()}
        if tag == "arr":
            return [go(part) for part in e[1]]
        if tag == "pick":
            value = go(e[1])
            return value[e[2]] if isinstance(value, dict) and e[2] in value else value
        if tag == "src":
            value = go(e[1])
            return value.get(e[2]) if isinstance(value, dict) else value
        if tag == "let":
            value = go(e[1])
            return {**(value if isinstance(value, dict) else {}), **{n: go(p) for n, p in e[2].items()}}
        if tag == "cfg":
            return wrap_input(go(e[1]), e[2])
        if tag == "phi":
            return go(e[2]) if go(e[1]) is True else go(e[3])
        raise ValueError(f"unknown expression: {tag!r}")

    return go(expr)


def dump_step(step: Step) -> str:
    """Return a step as compact JSON, with only what the worker that claims it needs."""
    ops = [
        [op.path, op.id, op.name, op.implementation, op.input, list(map(dict, op.effects)), op.timeout]
        for op in step.ops
    ]
    record = [step.path, step.queue, ops, step.value, step.refs, int(step.reads_input)]
    return json.dumps(record, separators=(",", ":"))


def load_step(text: str | bytes) -> Step:
    """Return the step that `dump_step` wrote, with empty fields for what it left out."""
    path, queue, listed, value, refs, reads_input = json.loads(text)
    ops = [Op(*fields) for fields in listed]
    return Step(
        path=path,
        queue=queue,
        ops=tuple(replace(op, effects=tuple(op.effects)) for op in ops),
        value=value,
        refs=tuple(refs),
        reads_input=bool(reads_input),
    )
