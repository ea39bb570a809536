"""The health of a seat's models: a circuit breaker for each model that failed.

An error that blames one model counts for its breaker, and the seat goes on with its others. The rate limit of
a model opens it as that of an account opens the seat's. Then it is half-open:
one request at a time tries the model: its success closes the breaker, its failure opens it again. A refusal
that blames nobody opens a closed breaker only after several requests in a row, so that one user's request
takes the model from nobody else.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from gridq.errors import ModelInCooldown, ModelUnavailable, RequestRefused, SeatError
from gridq.execution.circuit_breaker import CircuitBreaker
from gridq.protocol.seat_states import Unavailable

REFUSALS_TO_OPEN = 3
"""Requests in a row, of two agents or more, that the endpoint refuses without a reason."""

REFUSALS_OF_ONE_AGENT = 10
"""The same of one agent alone: what it asks for may be what is refused."""

COOLDOWN_RETRY_SECONDS = 5.0
TRIAL_RETRY_SECONDS = 1.0
"""The time for which a stage that came to a model in vain is not given to this seat again."""


class ModelHealth:
    """The models of one seat. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._breakers: dict[str, CircuitBreaker] = {}
        self._refused: dict[str, dict[str, str]] = {}  # model → request → agent, since its last success
        self._trials: dict[str, str] = {}  # half-open model → the attempt that tries it

    @property
    def in_cooldown(self) -> dict[str, Unavailable]:
        """The models that take no work, and why."""
        if not self._breakers:
            return {}
        with self._lock:
            return {name: b.opened for name, b in self._breakers.items() if b.opened is not None}

    def begin(self, model: str, attempt: str) -> None:
        """Say that `attempt` is about to use `model`. ModelInCooldown: it is, or another attempt is
        trying it.
        """
        if not self._breakers:
            return
        with self._lock:
            breaker = self._breakers.get(model)
            if breaker is None:
                return
            if breaker.opened is not None:
                raise _make_error(
                    model, f"it is in cooldown: {breaker.opened.reason}", COOLDOWN_RETRY_SECONDS
                )
            if breaker.half_open_reason and self._trials.setdefault(model, attempt) != attempt:
                reason = f"another request is trying it after: {breaker.half_open_reason}"
                raise _make_error(model, reason, TRIAL_RETRY_SECONDS)

    def end(self, attempt: str) -> None:
        """Say that `attempt` has ended: another may try the model that it tried."""
        if self._trials:
            with self._lock:
                self._trials = {model: each for model, each in self._trials.items() if each != attempt}

    def record_success(self, model: str) -> None:
        """Count an answer of `model`, or its first piece. Its breaker closes with the next `advance`."""
        if not self._breakers and not self._refused:
            return
        with self._lock:
            self._refused.pop(model, None)
            if model in self._breakers:
                self._breakers[model].record_success()

    def record_failure(self, model: str, error: SeatError, *, request: str, agent: str) -> float | None:
        """Count a ModelUnavailable, a RequestRefused or the rate limit of a model. Return the cooldown in
        seconds if it opens the model's breaker.

        `request` tells requests apart: several attempts of one count once.
        """
        with self._lock:
            if isinstance(error, RequestRefused):
                if not self._is_half_open(model) and not self._count_refusal(model, request, agent):
                    return None
                error = ModelUnavailable(error.message, error.details)
            cooldown = self._breakers.setdefault(model, CircuitBreaker()).record_failure(error, request)
            if cooldown is not None:
                self._refused.pop(model, None)
            return cooldown

    def _is_half_open(self, model: str) -> bool:
        return model in self._breakers and bool(self._breakers[model].half_open_reason)

    def _count_refusal(self, model: str, request: str, agent: str) -> bool:
        """Return whether there are enough of them to blame the model."""
        refused = self._refused.setdefault(model, {})
        refused[request] = agent
        needed = REFUSALS_TO_OPEN if len(set(refused.values())) > 1 else REFUSALS_OF_ONE_AGENT
        return len(refused) >= needed

    def advance(self) -> bool:
        """Advance the breakers, and forget those that closed. Return whether one changed."""
        return self._change(CircuitBreaker.advance)

    def end_cooldown(self) -> bool:
        """End the cooldown of all models now. Return whether there was one."""
        return self._change(CircuitBreaker.end_cooldown)  # `advance` then makes them half-open

    def _change(self, act: Callable[[CircuitBreaker], bool]) -> bool:
        if not self._breakers:
            return False
        with self._lock:
            changed = [act(breaker) for breaker in self._breakers.values()]
            for name, breaker in list(self._breakers.items()):
                if breaker.is_well:
                    del self._breakers[name]
        return any(changed)


def _make_error(model: str, reason: str, retry_after: float) -> ModelInCooldown:
    details = {"reason": reason, "retry_after": retry_after}
    return ModelInCooldown(f"The seat's model {model!r} takes no request now", details)
