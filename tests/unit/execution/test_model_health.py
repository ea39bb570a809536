"""What opens the breaker of one model, and who may try it afterwards."""

from __future__ import annotations

import pytest

from gridq.errors import ModelInCooldown, ModelUnavailable, RequestRefused, SeatRateLimited
from gridq.execution.model_health import REFUSALS_OF_ONE_AGENT, REFUSALS_TO_OPEN, ModelHealth

GONE = ModelUnavailable("The endpoint does not serve this model")
REFUSED = RequestRefused("The endpoint refused the request with HTTP 403")


def fail(
    health: ModelHealth,
    error: ModelUnavailable | RequestRefused | SeatRateLimited,
    request: str,
    agent: str = "a",
) -> bool:
    """Record a failure of the model `m`; return whether its cooldown begins."""
    return health.record_failure("m", error, request=request, agent=agent) is not None


def test_one_failure_that_blames_the_model_is_enough() -> None:
    health = ModelHealth()
    assert fail(health, GONE, "1")
    assert list(health.in_cooldown) == ["m"]
    health.begin("n", "x")  # another model
    with pytest.raises(ModelInCooldown, match="does not serve"):
        health.begin("m", "x")


def test_attempts_of_one_request_count_once() -> None:
    health = ModelHealth()
    assert not any(fail(health, REFUSED, "1") for _ in range(100))
    assert not health.in_cooldown


def test_refusals_of_several_agents_in_a_row_are_enough() -> None:
    health = ModelHealth()
    assert not fail(health, REFUSED, "1", "ada")
    assert not fail(health, REFUSED, "2", "ada")
    assert fail(health, REFUSED, "3", "bob")
    assert REFUSALS_TO_OPEN == 3


def test_refusals_of_one_agent_must_be_many() -> None:
    health = ModelHealth()
    ended = [fail(health, REFUSED, str(number)) for number in range(REFUSALS_OF_ONE_AGENT)]
    assert ended == [False] * (REFUSALS_OF_ONE_AGENT - 1) + [True]


def limit(retry_after: float | None = None) -> SeatRateLimited:
    details = {"scope": "model"} | ({} if retry_after is None else {"retry_after": retry_after})
    return SeatRateLimited("The endpoint's rate limit for this model is reached", details)


def test_a_models_limit_with_a_long_wait_opens_its_breaker() -> None:
    health = ModelHealth()
    assert health.record_failure("m", limit(600), request="1", agent="a") == 600
    assert health.in_cooldown["m"].state == "rate_limited"


def test_a_models_limit_with_a_short_wait_opens_its_breaker_after_several_requests() -> None:
    health = ModelHealth()
    for _ in range(9):
        assert not fail(health, limit(2), "1")
    assert not fail(health, limit(2), "2")
    assert not health.advance()  # it must not forget what has failed
    assert fail(health, limit(2), "3")


def test_a_success_forgets_a_models_limits() -> None:
    health = ModelHealth()
    assert not fail(health, limit(2), "1")
    assert not fail(health, limit(2), "2")
    health.record_success("m")
    assert not fail(health, limit(2), "3")


def test_a_success_starts_the_count_anew() -> None:
    health = ModelHealth()
    for number in range(50):
        assert not fail(health, REFUSED, str(number), f"agent {number % 2}")
        if number % 2:
            health.record_success("m")


def test_a_trial_that_is_refused_opens_the_breaker_again() -> None:
    health = ModelHealth()
    cooldowns = [health.record_failure("m", GONE, request="1", agent="a")]
    for trial in ("2", "3", "4"):
        assert health.end_cooldown()
        assert health.advance()
        health.begin("m", trial)
        cooldowns.append(health.record_failure("m", REFUSED, request=trial, agent="a"))
        health.end(trial)
        assert list(health.in_cooldown) == ["m"]
    assert cooldowns == [60, 120, 240, 480]


def test_one_attempt_at_a_time_tries_a_model() -> None:
    health = ModelHealth()
    fail(health, GONE, "1")
    assert health.end_cooldown()
    assert health.advance()
    assert not health.in_cooldown
    health.begin("m", "first")
    health.begin("m", "first")
    with pytest.raises(ModelInCooldown, match="another request is trying it"):
        health.begin("m", "second")
    health.end("first")
    health.begin("m", "second")
    health.record_success("m")
    assert health.advance()
    health.begin("m", "third")
    assert not health.advance(), "it is as if it had never failed"
    assert not health.end_cooldown()
