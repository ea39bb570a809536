"""One function turns an Llm effect into a queue; families are declared, never derived."""

from __future__ import annotations

import pytest

from gridq.errors import InvalidField
from gridq.protocol.betas import ANY_BETA
from gridq.protocol.models import Effect
from workers.model_apis.demand import (
    NO_EMBEDDINGS,
    NO_RESPONSES,
    explain_model_mismatch,
    filter_models,
    find_models,
    list_llm_queues,
    parse_llm_demand,
)
from workers.model_apis.model_catalogue import ModelOffer

GPT4 = ModelOffer(name="gpt-4", families=("gpt",), context=8192)
TURBO = ModelOffer(name="gpt-4-turbo", families=("gpt", "fast"), context=128_000)
EMBED = ModelOffer(name="text-embedding-3", context=8192, embeddings=True)


def llm(**fields: object) -> Effect:
    return Effect(effect="Llm", **fields)


@pytest.mark.parametrize("fields", [{}, {"model": None}, {"model": "any"}, {"model": "ANY"}])
def test_a_demand_without_model_is_any(fields: dict[str, object]):
    demand = parse_llm_demand(llm(**fields))
    assert demand is not None
    assert demand.queue == "llm:any"


def test_a_models_queue_is_its_slug():
    demand = parse_llm_demand(llm(model="Meta/Llama 3:8b"))
    assert demand is not None
    assert demand.queue == "llm:meta%2Fllama%203%3A8b"


def test_other_effects_have_no_llm_demand():
    assert parse_llm_demand(Effect(effect="Gpu", model="x")) is None


@pytest.mark.parametrize("model", [3, "", " ", [], {}, list("abcdefghi")])
def test_an_invalid_model_name_is_refused(model: object):
    with pytest.raises(InvalidField) as caught:
        parse_llm_demand(llm(model=model))
    assert caught.value.path == "effects.model"


def test_a_field_that_does_not_exist_is_refused_with_the_one_that_was_meant():
    with pytest.raises(InvalidField) as caught:
        parse_llm_demand(llm(modle="m"))
    assert (caught.value.path, caught.value.details["fix"]) == ("effects.modle", "use 'model'")


@pytest.mark.parametrize("context", [0, -1, "8k", True, 1.5])
def test_an_invalid_context_is_refused(context: object):
    with pytest.raises(InvalidField):
        parse_llm_demand(llm(context=context))


def test_exact_names_first_then_families_then_any():
    assert list_llm_queues([GPT4, TURBO]) == [
        "llm:gpt-4",
        "llm:gpt-4-turbo",
        "llm:gpt",
        "llm:fast",
        "llm:any",
    ]
    assert list_llm_queues([]) == []


def test_a_name_prefix_matches_no_model():
    demand = parse_llm_demand(llm(model="gpt-4"))
    assert demand is not None
    assert filter_models(demand, [TURBO]) == []
    assert filter_models(demand, [TURBO, GPT4]) == [GPT4]


def test_a_family_matches_its_models_in_the_seats_order():
    demand = parse_llm_demand(llm(model="gpt"))
    assert demand is not None
    assert filter_models(demand, [TURBO, EMBED, GPT4]) == [TURBO, GPT4]


def test_context_and_embeddings_filter_models():
    wide = parse_llm_demand(llm(context=50_000))
    vectors = parse_llm_demand(llm(embeddings=True))
    assert wide is not None
    assert vectors is not None
    assert filter_models(wide, [GPT4, TURBO]) == [TURBO]
    assert filter_models(vectors, [GPT4, EMBED]) == [EMBED]


def test_any_stands_for_models_that_write_text():
    vectors = EMBED.model_copy(update={"any": False})
    assert list_llm_queues([vectors]) == ["llm:text-embedding-3", "llm:any%2Fembeddings"]
    assert list_llm_queues([GPT4])[-1] == "llm:any", "without embeddings"
    text, embeddings = parse_llm_demand(llm()), parse_llm_demand(llm(embeddings=True))
    assert text is not None
    assert embeddings is not None
    assert filter_models(text, [vectors, GPT4]) == [GPT4]
    assert filter_models(embeddings, [GPT4, vectors]) == [vectors]


def test_a_mismatch_is_explained():
    def mismatch(**fields: object) -> str:
        demand = parse_llm_demand(llm(**fields))
        assert demand is not None
        return explain_model_mismatch(demand, [GPT4, EMBED])

    assert mismatch(model="gpt-4") == mismatch(embeddings=True) == mismatch(model="gpt", context=8192) == ""
    assert mismatch(model="gpt-4", embeddings=True) == NO_EMBEDDINGS
    assert mismatch(model="gpt-4", context=8193) == "its context is 8192 tokens"
    assert mismatch(embeddings=True, context=8193) == "its context is 8192 tokens"
    assert mismatch(model="gpt-5") == "it does not serve llm:gpt-5"


def test_several_models_are_alternatives_in_order():
    demand = parse_llm_demand(
        llm(model=["Claude Opus", {"model": "gpt-5", "context": 9000}, "any"], context=100, embeddings=True)
    )
    assert demand is not None
    assert [link.queue for link in demand.alternatives] == ["llm:claude%20opus", "llm:gpt-5", "llm:any"]
    assert [link.needs["context"] for link in demand.alternatives] == [100, 9000, 100]
    assert all(link.needs["embeddings"] for link in demand.alternatives)
    assert demand.find_alternative("llm:gpt-5") == demand.fallbacks[0]
    assert demand.find_alternative("") == demand
    aliased = demand.find_alternative("llm:other")
    assert (aliased.queue, aliased.needs, aliased.fallbacks) == ("llm:other", demand.needs, ())
    assert parse_llm_demand(llm(model=["x"])) == parse_llm_demand(llm(model="x"))


@pytest.mark.parametrize(
    ("models", "path"),
    [
        (["a", 7], "effects.model[1]"),
        (["a", None], "effects.model[1]"),
        (["a", ["b"]], "effects.model[1]"),
        (["a", "A"], "effects.model[1]"),
        (["a", {"model": "a"}], "effects.model[1].model"),
        ([{"model": "a", "context": 0}], "effects.model[0].context"),
        ([{"model": "a", "embeddings": True}], "effects.model[0].embeddings"),
        ([f"m{number}" for number in range(9)], "effects.model"),
        ([], "effects.model"),
    ],
)
def test_a_wrong_list_of_models_names_the_wrong_field(models: list[object], path: str):
    with pytest.raises(InvalidField) as caught:
        parse_llm_demand(llm(model=models))
    assert caught.value.path == path


def test_a_requests_model_field_selects_models():
    models = [GPT4, TURBO]
    assert find_models(None, models) == models
    assert find_models("any", models) == models
    assert find_models("fast", models) == [TURBO]
    assert find_models("GPT-4", models) == [GPT4]
    assert find_models("gpt-5", models) == []
    assert find_models(7, models) == []
    assert find_models(["gpt-5", None, {"model": "fast"}, "gpt-4"], models) == [TURBO]
    assert find_models([7, []], models) == []


def test_responses_filter_seats():
    own = GPT4.model_copy(update={"responses": True})
    demand = parse_llm_demand(llm(model=["gpt-4", "any"], responses=True))
    assert demand is not None
    assert filter_models(demand, [GPT4]) == filter_models(demand.fallbacks[0], [GPT4]) == []
    assert filter_models(demand, [own]) == [own]
    assert explain_model_mismatch(demand, [GPT4]) == NO_RESPONSES


def test_betas_filter_seats():
    usual = GPT4.model_copy(update={"betas": (ANY_BETA,)})
    files = GPT4.model_copy(update={"betas": (ANY_BETA, "files-api-2025-04-14")})
    demand = parse_llm_demand(llm(model="gpt-4", betas=["files-api-2025-04-14"]))
    assert demand is not None
    assert filter_models(demand, [GPT4, usual, files]) == [files]
    assert explain_model_mismatch(demand, [GPT4, files]) == ""
    for models in ([GPT4], [usual], [GPT4, usual]):
        assert "files-api-2025-04-14" in explain_model_mismatch(demand, models)
    hint = parse_llm_demand(llm(model="gpt-4", betas=[]))
    assert hint is not None
    assert hint.needs == {}
    with pytest.raises(InvalidField):
        parse_llm_demand(llm(betas="files-api-2025-04-14"))
