"""Costs of calls: each kind of token at its price, the operator's prices first, no guesses."""

from __future__ import annotations

import gc
import socket
from typing import Any

import pytest

from gridq.errors import ConfigError
from gridq.profiles.profile import StageContext
from gridq.protocol.models import StageCall, Usage
from tests.fakes.http_server import Handler, LocalServer
from tests.fakes.openai_server import KEY, OpenAIServer
from workers.profiles.llm import LlmProfile
from workers.profiles.llm.capability import LlmCapability, RemoteModel
from workers.profiles.llm.costs import add_cost, price_usage
from workers.profiles.llm.price_list import PriceList, Tier
from workers.profiles.llm.probe import probe

USED = Usage(
    tokens_in=1000,
    tokens_out=100,
    tokens_cached=600,
    tokens_cache_written=300,
    tokens_cache_hour=100,
    tokens_reasoning=40,
    tokens_audio_in=10,
    tokens_audio_out=5,
)
WHOLE: dict[str, Any] = {
    "price_in": 3,
    "price_out": 15,
    "price_cached": 0.3,
    "price_cache_write": 3.75,
    "price_cache_hour": 6,
    "price_reasoning": 20,
    "price_audio_in": 40,
    "price_audio_out": 80,
}


def seat(**fields: Any) -> dict[str, Any]:
    return {"name": "main", "url": "https://llm.example.com/v1", **fields}


def cost(used: Usage, **model: Any) -> int | None:
    return price_usage(used, RemoteModel(name="m", **model)).micro_dollars


def test_each_kind_of_token_is_charged_at_its_own_price():
    expected = 90 * 3 + 600 * 0.3 + 200 * 3.75 + 100 * 6 + 10 * 40 + 55 * 15 + 40 * 20 + 5 * 80
    assert cost(USED, **WHOLE) == expected


def test_a_token_kind_without_a_price_uses_that_of_its_direction():
    assert cost(USED, price_in=3, price_out=15) == 1000 * 3 + 100 * 15
    assert cost(USED, price_in=3, price_out=15, price_cache_write=4) == 700 * 3 + 300 * 4 + 100 * 15


def test_a_cost_is_exact_and_rounded_up_once_per_call():
    assert cost(Usage(tokens_in=3), price_in=0.1, price_out=0) == 1
    assert cost(Usage(tokens_in=10), price_in=0.1, price_out=0) == 1  # in binary 1.0000000000000002
    assert cost(Usage(tokens_in=10**9), price_in=0.1, price_out=0) == 10**8


@pytest.mark.parametrize(
    ("used", "prices", "micro"),
    [
        (Usage(tokens_in=1), {}, None),
        (Usage(), {}, None),
        (Usage(tokens_in=1, tokens_out=1), {"price_in": 1}, None),
        (Usage(tokens_in=7), {"price_in": 1}, 7),
        (Usage(tokens_in=7), {"price_in": 0, "price_out": 0}, 0),
    ],
)
def test_an_unknown_price_is_not_zero(used: Usage, prices: dict[str, float], micro: int | None):
    assert cost(used, **prices) == micro


def test_a_long_call_costs_its_tier_throughout():
    tiers = (Tier(above=200_000, price_in=6, price_out=22.5), Tier(above=500_000, price_in=9, price_out=30))
    model = {"price_in": 3, "price_out": 15, "tiers": tiers}
    assert cost(Usage(tokens_in=200_000, tokens_out=10), **model) == 600_000 + 150
    assert cost(Usage(tokens_in=200_001, tokens_out=10), **model) == 1_200_006 + 225
    assert cost(Usage(tokens_in=500_001, tokens_out=10), **model) == 4_500_009 + 300


def test_a_call_has_the_price_of_its_service_tier():
    services = PriceList().look_up(["gpt-5"], "openai", "")["gpt-5"].services
    model = {"price_in": 1.25, "price_out": 10, "services": services}
    used = Usage(tokens_in=1000, tokens_out=100)
    assert cost(used, **model) == 2250
    assert cost(used.model_copy(update={"service": "flex"}), **model) == 1125
    assert cost(used.model_copy(update={"service": "priority"}), **model) == 4500
    assert cost(used.model_copy(update={"service": "unheard"}), **model) == 2250
    fast = PriceList().look_up(["claude-fable-5-2"], "anthropic", "")["claude-fable-5-2"].services
    assert [each.name for each in fast] == ["fast"]


def test_a_subscription_has_no_price_and_a_stated_cost_counts():
    model = RemoteModel(name="m", price_in=3, price_out=15)
    flat = LlmCapability(host="h", models=(model,), billing="subscription")
    assert add_cost(USED, model, flat) == USED.model_copy(update={"micro_dollars": None})
    stating = LlmCapability(host="h", models=(model,), states_cost=True)
    usage = Usage(tokens_in=1000, micro_dollars=77)
    assert add_cost(usage, model, stating).micro_dollars == 77
    assert add_cost(usage, model, LlmCapability(host="h", models=(model,))).micro_dollars == 3000
    assert add_cost(Usage(tokens_in=1000), model, stating).micro_dollars == 3000


def test_listed_prices_are_those_of_the_provider_or_its_address():
    assert PriceList().look_up(["gpt-4o"], "openai", "")["gpt-4o"].prices["price_cached"] == 1.25
    assert "gpt-4o" in PriceList().look_up(["gpt-4o"], None, "https://api.openai.com/v1")
    assert PriceList().look_up(["gpt-4o"], None, "https://llm.example.com/v1") == {}
    assert PriceList().look_up(["no-such-model"], "openai", "") == {}
    (tier,) = PriceList().look_up(["gemini-2.5-pro"], "google", "")["gemini-2.5-pro"].tiers
    assert (tier.above, tier.price_in, tier.price_out) == (200_000, 2.5, 15)


def test_a_price_lookup_uses_no_network(monkeypatch: pytest.MonkeyPatch):
    def refuse(*args: object, **options: object) -> None:
        raise AssertionError("a price was looked up on the network")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert (
        PriceList().look_up(["claude-sonnet-4-5"], "anthropic", "")["claude-sonnet-4-5"].prices["price_in"]
        == 3
    )


def models_of(**fields: Any) -> dict[str, RemoteModel]:
    report = probe([seat(**fields)], {})
    (offer,) = report.found
    return {model.name: model for model in LlmCapability.model_validate(offer.capability).models}


def test_the_operators_prices_win_over_the_list():
    url = "https://api.openai.com/v1"
    listed = models_of(url=url, models=[{"name": "gpt-4o"}])["gpt-4o"]
    assert (listed.price_in, listed.price_out, listed.price_cached) == (2.5, 10, 1.25)
    own = models_of(url=url, models=[{"name": "gpt-4o", "price_in": 2}])["gpt-4o"]
    assert (own.price_in, own.price_out, own.price_cached) == (2, 10, 1.25)
    whole = models_of(url=url, models=[{"name": "gpt-4o", "price_in": 2, "price_out": 3}])["gpt-4o"]
    assert (whole.price_in, whole.price_out, whole.price_cached) == (2, 3, None)


def test_a_budget_needs_a_price_for_each_model_and_says_which_lines_to_add():
    with pytest.raises(ConfigError) as caught:
        probe([seat(budget=5, models=[{"name": "house-model"}])], {})
    assert caught.value.path == "llm.main.models"
    assert "'house-model'" in caught.value.message
    for part in ("[[llm.models]]", 'name = "house-model"', "price_in", "price_out", "subscription"):
        assert part in caught.value.details["fix"]
    half = [{"name": "house-model", "price_in": 1}]
    with pytest.raises(ConfigError):
        probe([seat(budget=5, models=half)], {})
    assert probe([seat(budget=5, models=[{**half[0], "embeddings": True}])], {}).found
    assert probe([seat(budget=5, models=[{**half[0], "price_out": 0}])], {}).found
    assert probe([seat(models=half)], {}).found, "without a budget nothing is counted"


def test_listed_models_without_a_price_are_left_out_of_a_budget():
    with OpenAIServer(key=KEY) as server:
        table = seat(url=server.url, key_env="K", allow_loopback=True, budget=5)
        report = probe([table], {"K": KEY})
        assert report.found == []
        assert "without a known price: echo, other" in report.missing[0]
        assert 'name = "echo"' in report.missing[0]
        assert probe([{**table, "provider": "openrouter"}], {"K": KEY}).found, "each answer says what it cost"


def test_the_cost_that_openrouter_states_is_charged(monkeypatch: pytest.MonkeyPatch):
    class OpenRouter(Handler):
        def do_POST(self) -> None:
            self.body()
            message = {"role": "assistant", "content": "hi"}
            usage = {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10, "cost": 0.0000231}
            choices = [{"index": 0, "finish_reason": "stop", "message": message}]
            self.answer(200, {"id": "1", "choices": choices, "usage": usage})

    monkeypatch.setenv("OPENROUTER_API_KEY", KEY)
    with LocalServer(OpenRouter) as server:
        profile = LlmProfile()
        table = {"provider": "openrouter", "url": server.url, "allow_loopback": True, "budget": 5}
        (offer,) = profile.probe([{**table, "models": [{"name": "some/model"}]}]).found
        profile.open(LlmCapability.model_validate(offer.capability), offer.config)
        call = StageCall(id="s", name="s", path="$", implementation="llm:complete")
        context = StageContext()
        assert profile.run(call, "hello", context) == "hi"
        profile.close()
    assert context.usage == Usage(tokens_in=9, tokens_out=1, micro_dollars=24)


def test_a_subscription_has_no_budget_in_dollars_and_a_note():
    flat = {"billing": "subscription", "models": [{"name": "house-model"}]}
    (offer,) = probe([seat(**flat)], {}).found
    assert offer.limits == ()
    assert offer.capability["billing"] == "subscription"
    assert offer.note == f"1 model at {offer.capability['host']}, on a subscription"
    two = [{"name": "house-model"}, {"name": "guest-model"}]
    assert probe([seat(models=two)], {}).found[0].note.startswith("2 models at ")
    with pytest.raises(ConfigError) as caught:
        probe([seat(budget=5, **flat)], {})
    assert caught.value.path == "llm[0].budget"


def test_a_typo_in_a_price_is_found():
    with pytest.raises(ConfigError) as caught:
        probe([seat(models=[{"name": "m", "price_inn": 3}])], {})
    assert caught.value.path == "llm[0].models.0.price_inn"
    with pytest.raises(ConfigError) as caught:
        probe([seat(models=[{"name": "m", "price_in": -3}])], {})
    assert caught.value.path == "llm[0].models.0.price_in"


def _listed_models() -> int:
    gc.collect()
    return sum(type(each).__qualname__ == "ModelInfo" for each in gc.get_objects())


def test_the_price_list_is_freed_after_a_lookup():
    before = _listed_models()
    assert PriceList().look_up(["gpt-4o"], "openai", "")["gpt-4o"].prices["price_in"] > 0
    assert _listed_models() == before
