"""Run a plan in memory. Steps start and finish in any order that the plan permits.

    answer = simulate(plan, value, call, random.Random(seed))

It follows the contract between engine and plan. A step is ready when all of `after` are done or skipped. A
gate's output decides which of its `Arms` is skipped. A failure inside a `Scope` cancels its running steps and
restarts all its steps while tries are left; after that, the enclosing scope fails. The guarantees of a plan
are asserted on the way: no step reads a missing output, a skipped step never runs, and no step outside a
scope has used an output of a step that the scope restarts.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from gridq.errors import StageError
from gridq.graph.interpreter import Outcome
from gridq.graph.plan import Plan, Step, dump_step, evaluate, load_step

Call = Callable[[str, Any, str], Any]
"""`call(implementation, value, path)`."""

WAITING, READY, RUNNING, DONE, SKIPPED = "waiting", "ready", "running", "done", "skipped"


def simulate(plan: Plan, value: Any, call: Call, order: random.Random) -> Any:
    """Return the answer of `plan` for the job's input `value`. Raises StageError if the job fails."""
    return Simulation(plan, value, call, order).run()


class Simulation:
    """One run. `calls` lists the stages run as (path, input), in order of start."""

    def __init__(self, plan: Plan, value: Any, call: Call, order: random.Random) -> None:
        self.plan = plan
        self.value = value
        self.call = call
        self.order = order
        self.calls: list[tuple[str, Any]] = []
        # Workers get the steps in this form.
        self.steps: list[Step] = [load_step(dump_step(step)) for step in plan.steps]
        self.state = [WAITING] * len(plan.steps)
        self.waits = [len(step.after) for step in plan.steps]
        self.outputs: dict[int, str] = {}
        self.running: dict[int, tuple[str | None, StageError | None]] = {}
        self.tries = [0] * len(plan.scopes)
        self.dependents: list[list[int]] = [[] for _ in plan.steps]
        for number, step in enumerate(plan.steps):
            for before in step.after:
                self.dependents[before].append(number)
        self.arms = {arms.gate: arms for arms in plan.arms}
        assert len(self.arms) == len(plan.arms)
        for number, count in enumerate(self.waits):
            if count == 0:
                self.state[number] = READY

    def outcome(self) -> Outcome:
        """Return the answer, or the path of the stage that ended the job."""
        try:
            return Outcome(self.run())
        except StageError as exc:
            return Outcome(failures={str(exc.path): exc})

    def run(self) -> Any:
        """Return the answer. Raises StageError if the job fails."""
        while self.state[self.plan.answer] != DONE:
            ready = [number for number, state in enumerate(self.state) if state == READY]
            choices = ready + list(self.running)
            assert choices, "no step can run, and there is no answer"
            number = self.order.choice(choices)
            if number in self.running:
                self.finish(number)
            else:
                self.start(number)
        unfinished = [n for n, state in enumerate(self.state) if state not in (DONE, SKIPPED)]
        assert not unfinished, f"the answer came before steps {unfinished}"
        return json.loads(self.outputs[self.plan.answer])

    def start(self, number: int) -> None:
        step = self.steps[number]
        done: list[Any] = []

        def output(ref: int) -> Any:
            assert ref in step.refs, f"step {number} reads {ref}, which is not in its refs"
            assert self.state[ref] == DONE, f"step {number} reads {ref}, which is {self.state[ref]}"
            return json.loads(self.outputs[ref])

        def job_input() -> Any:
            assert step.reads_input, f"step {number} reads the job's input without declaring it"
            return self.value

        self.state[number] = RUNNING
        try:
            for op in step.ops:
                given = evaluate(op.input, job_input, output, done)
                self.calls.append((op.path, given))
                done.append(self.call(op.implementation, given, op.path))
            self.running[number] = json.dumps(evaluate(step.value, job_input, output, done)), None
        except StageError as exc:
            self.running[number] = None, exc

    def finish(self, number: int) -> None:
        output, error = self.running.pop(number)
        if error is not None:
            self.fail(number, error)
            return
        assert output is not None
        self.outputs[number] = output
        self.state[number] = DONE
        if number in self.arms:
            arms = self.arms[number]
            for skipped in arms.if_false if output == "true" else arms.if_true:
                # An outer gate decides for all steps below it, even if an inner gate has not decided yet.
                if self.state[skipped] not in (SKIPPED,):
                    assert self.state[skipped] in (WAITING, READY), f"{skipped} ran before its gate {number}"
                    self.state[skipped] = SKIPPED
                    self.release(skipped)
        self.release(number)

    def release(self, number: int) -> None:
        for dependent in self.dependents[number]:
            self.waits[dependent] -= 1
            assert self.waits[dependent] >= 0
            if self.waits[dependent] == 0 and self.state[dependent] == WAITING:
                self.state[dependent] = READY

    def fail(self, number: int, error: StageError) -> None:
        scope = self.plan.steps[number].scope
        while scope is not None:
            self.tries[scope] += 1
            if self.tries[scope] < self.plan.scopes[scope].max_attempts:
                self.restart(scope)
                return
            scope = self.plan.scopes[scope].parent
        raise error

    def restart(self, scope: int) -> None:
        inside = dict(self.plan.scopes[scope].steps)
        for number in inside:
            if self.state[number] in (DONE, SKIPPED):
                outside = [d for d in self.dependents[number] if d not in inside]
                assert not outside, f"steps {outside} have counted step {number}, which runs again"
        for number, count in inside.items():
            self.running.pop(number, None)
            self.outputs.pop(number, None)
            self.waits[number] = count
            self.state[number] = WAITING if count else READY
        for inner, data in enumerate(self.plan.scopes):
            parent = data.parent
            while parent is not None and parent != scope:
                parent = self.plan.scopes[parent].parent
            if parent == scope:
                self.tries[inner] = 0
