"""Seats by the name of a provider, and those that the environment names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gridq.errors import ConfigError, SeatDegraded
from gridq.profiles.profile import StageContext
from gridq.protocol.models import ProbeReport
from tests.fakes.http_server import Handler, LocalServer
from tests.fakes.openai_server import KEY, OpenAIServer
from workers.model_apis.openai.client import OpenAIClient
from workers.profiles.llm.capability import LlmCapability, LlmSeat
from workers.profiles.llm.credentials import make_client, open_client
from workers.profiles.llm.price_list import PriceList
from workers.profiles.llm.probe import probe
from workers.profiles.llm.providers import PROVIDERS
from workers.profiles.llm.seats_from_environment import VARIABLE_PREFIXES, list_key_variables

OWN = {name for name, provider in PROVIDERS.items() if provider.url is None}
MODELS = [{"name": "m"}]


def config_of(report: ProbeReport, name: str) -> LlmSeat:
    return LlmSeat.model_validate(next(offer for offer in report.found if offer.name == name).config)


@pytest.mark.parametrize("name", sorted(PROVIDERS.keys() - OWN))
def test_a_provider_fills_in_its_address_its_api_and_its_key(name: str):
    provider = PROVIDERS[name]
    report = probe([{"provider": name, "models": MODELS}], {provider.keys[-1]: KEY})
    seat = config_of(report, name)
    assert (seat.url, seat.api, seat.key_env) == (provider.url, provider.api, provider.keys[-1])


@pytest.mark.parametrize("name", sorted(OWN))
def test_a_self_hosted_provider_needs_an_address(name: str):
    with pytest.raises(ConfigError) as caught:
        probe([{"provider": name, "models": MODELS}], {})
    assert caught.value.path == "llm[0].url"
    keys = dict.fromkeys(PROVIDERS[name].keys, KEY)
    assert probe([{"provider": name, "url": "https://own.example.com/v1", "models": MODELS}], keys).found


def test_fields_of_the_table_override_the_provider(tmp_path: Path):
    key = tmp_path / "key"
    key.write_text(KEY)
    own = {"name": "ours", "provider": "groq", "url": "https://proxy.example.com/v1", "key_file": str(key)}
    seat = config_of(probe([{**own, "models": MODELS}], {"GROQ_API_KEY": "other"}), "ours")
    assert (seat.url, seat.key_env, seat.key_file) == ("https://proxy.example.com/v1", None, str(key))


@pytest.mark.parametrize(
    ("name", "near"), [("mistal", "mistral"), ("OpenAI", "openai"), ("gogle", "google"), ("zzz", None)]
)
def test_an_unknown_provider_suggests_the_closest_name(name: str, near: str | None):
    with pytest.raises(ConfigError) as caught:
        probe([{"provider": name, "models": MODELS}], {})
    assert caught.value.path == "llm[0].provider"
    assert "openrouter" in caught.value.details["expected"]
    assert (f'"{near}"' if near else "url and api") in caught.value.details["fix"]


@pytest.mark.parametrize("provider", [each for each in PROVIDERS.values() if each.price_list_id])
def test_the_price_list_has_every_provider_with_an_id(provider: Any):
    from genai_prices.data_snapshot import get_snapshot

    found = get_snapshot().find_provider(None, provider.price_list_id, None)
    assert found.id == provider.price_list_id
    assert PriceList().look_up([found.models[0].id], provider.price_list_id, "").keys() <= {
        found.models[0].id
    }


@pytest.mark.parametrize(
    ("table", "serves"),
    [
        ({"provider": "openai"}, True),
        ({"url": "https://api.openai.com/v1"}, True),
        ({"provider": "openrouter"}, True),
        ({"provider": "groq"}, False),
        ({"provider": "xai"}, True),
        ({"provider": "fireworks"}, True),
        ({"provider": "azure", "url": "https://ours.openai.azure.com/openai/v1/"}, True),
        ({"provider": "azure", "url": "https://ours.openai.azure.com/openai/deployments/d"}, False),
        ({"provider": "deepseek"}, False),
        ({"provider": "openai", "url": "https://proxy.example.com/v1"}, False),
        ({"provider": "vllm", "url": "https://ours.example.com/v1"}, False),
        ({"provider": "vllm", "url": "https://ours.example.com/v1", "responses": True}, True),
        ({"provider": "openai", "responses": False}, False),
    ],
)
def test_a_seat_has_responses_by_its_url_or_its_table(
    table: dict[str, Any], serves: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SOME_KEY", KEY)
    report = probe([{"name": "s", "key_env": "SOME_KEY", "models": MODELS, **table}], {"SOME_KEY": KEY})
    client = open_client(config_of(report, "s"))
    assert isinstance(client, OpenAIClient)
    assert client.serves_responses is serves
    client.close()


def test_a_models_own_table_says_whether_it_has_responses():
    tables = [{"name": "has", "responses": True}, {"name": "lacks", "responses": False}, {"name": "usual"}]
    for table, usual in (({"responses": True}, True), ({"responses": False}, False), ({}, False)):
        seat = {"name": "s", "url": "https://ours.example.com/v1", "models": tables, **table}
        (offer,) = probe([seat], {}).found
        models = LlmCapability.model_validate(offer.capability).models
        assert [model.responses for model in models] == [True, False, usual]
        client = make_client(LlmSeat.model_validate(offer.config), None)
        assert isinstance(client, OpenAIClient)
        assert [client.has_responses(name) for name in ("has", "lacks", "usual")] == [True, False, usual]
    with pytest.raises(ConfigError) as caught:
        probe([{"provider": "anthropic", "models": tables}], {"ANTHROPIC_API_KEY": KEY})
    assert caught.value.path == "llm[0].models[0].responses"


def test_only_the_openai_api_format_has_responses():
    with pytest.raises(ConfigError) as caught:
        probe([{"provider": "anthropic", "models": MODELS, "responses": True}], {"ANTHROPIC_API_KEY": KEY})
    assert caught.value.path == "llm[0].responses"


def test_azure_has_its_own_header_and_version(server: OpenAIServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", KEY)
    table = {"provider": "azure", "url": server.url, "allow_loopback": True, "api_version": "2024-10-21"}
    api = open_client(config_of(probe([{**table, "models": MODELS}]), "azure"))
    body = {"model": "echo", "messages": [{"role": "user", "content": "hi"}]}
    with pytest.raises(SeatDegraded):  # this server asks for a bearer
        api.post("chat/completions", body, StageContext())
    (request,) = server.requests
    api.close()
    assert request["path"] == "/v1/chat/completions?api-version=2024-10-21"
    assert request["headers"]["api-key"] == KEY
    assert "Authorization" not in request["headers"]


@pytest.mark.parametrize(
    ("provider", "stream_options"), [("mistral", None), ("groq", {"include_usage": True})]
)
def test_streams_of_mistral_do_not_request_usage_which_it_rejects(
    server: OpenAIServer, monkeypatch: pytest.MonkeyPatch, provider: str, stream_options: Any
):
    monkeypatch.setenv("SOME_KEY", KEY)
    table = {"provider": provider, "url": server.url, "key_env": "SOME_KEY", "allow_loopback": True}
    api = open_client(config_of(probe([{**table, "models": MODELS}]), provider))
    body = {"model": "echo", "messages": [{"role": "user", "content": "hi"}]}
    options = {"stream_options": {"include_usage": True}}
    assert list(api.stream("chat/completions", body | options, StageContext()))
    api.close()
    assert server.requests[0]["body"] == {**body, "stream": True} | (
        {"stream_options": stream_options} if stream_options else {}
    )


def test_a_model_list_may_be_a_bare_array():
    class Bare(Handler):
        def do_GET(self) -> None:
            self.answer(200, [{"id": "a"}, {"id": "b"}])

    with LocalServer(Bare) as bare:
        api = OpenAIClient(bare.url)
        assert list(api.list_models(5)) == ["a", "b"]
        api.close()


def test_a_key_in_a_file_is_read_for_each_call(server: OpenAIServer, tmp_path: Path):
    path = tmp_path / "token"
    path.write_text("an-old-token")
    table = {"name": "s", "url": server.url, "key_file": str(path), "models": MODELS, "allow_loopback": True}
    api = open_client(LlmSeat.model_validate(table))
    body = {"model": "echo", "messages": [{"role": "user", "content": "hi"}]}
    with pytest.raises(SeatDegraded) as refused:
        api.post("chat/completions", body, StageContext())
    assert "an-old-token" not in refused.value.to_json()
    path.write_text(KEY + "\n")
    assert api.post("chat/completions", body, StageContext())["choices"]
    path.unlink()
    with pytest.raises(SeatDegraded) as gone:
        api.post("chat/completions", body, StageContext())
    assert "key file" in gone.value.message
    path.write_text(f"{KEY}\r\nX-More: 1")
    with pytest.raises(SeatDegraded, match="character") as odd:
        api.post("chat/completions", body, StageContext())
    assert KEY not in odd.value.to_json()
    api.close()


@pytest.fixture
def server() -> Any:
    with OpenAIServer(key=KEY) as running:
        yield running


ENVIRON = {
    "ANTHROPIC_API_KEY": "a",
    "ANTHROPIC_MODEL": "claude-x",
    "OPENAI_API_KEY": "o",
    "OPENAI_MODEL": "gpt-x",
    "MISTRAL_API_KEY": "m",
    "MISTRAL_MODEL": "mistral-x, mistral-y",
    "GOOGLE_API_KEY": "g",
    "GEMINI_MODEL": "gemini-x",
    "VERTEX_AI_PROJECT": "my-project",
    "VERTEX_AI_TOKEN": "t",
    "VERTEX_AI_MODEL": "gemini-y",
}


def test_every_key_of_the_environment_is_a_seat():
    report = probe([], ENVIRON)
    assert report.missing == []
    models = {offer.name: [model["name"] for model in offer.capability["models"]] for offer in report.found}
    assert models == {
        "anthropic": ["claude-x"],
        "openai": ["gpt-x"],
        "mistral": ["mistral-x", "mistral-y"],
        "google": ["gemini-x"],
        "vertex": ["gemini-y"],
    }
    assert [config_of(report, name).api for name in ("anthropic", "openai", "google")] == [
        "anthropic",
        "openai",
        "google",
    ]
    assert config_of(report, "google").key_env == "GOOGLE_API_KEY"
    assert config_of(report, "vertex").url == (
        "https://us-central1-aiplatform.googleapis.com/v1/projects/my-project/locations/us-central1"
        "/publishers/google"
    )


@pytest.mark.parametrize("switch", ["GRIDQ_SKIP_GEMINI", "GRIDQ_SKIP_GOOGLE"])
def test_a_switch_leaves_a_seat_out_and_the_probe_says_so(switch: str):
    report = probe([], {**ENVIRON, switch: "1", "GRIDQ_SKIP_OPENAI": "0"})
    assert {offer.name for offer in report.found} == {"anthropic", "openai", "mistral", "vertex"}
    assert report.missing == [f"google: skipped because {switch} is set"]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"VERTEX_AI_TOKEN": ""}, "VERTEX_AI_TOKEN_FILE"),
        ({"VERTEX_AI_MODEL": ""}, "name them in VERTEX_AI_MODEL"),
        ({"MISTRAL_BASE_URL": "http://localhost:1/v1"}, "MISTRAL_BASE_URL points to this machine"),
        ({"OPENAI_BASE_URL": "ftp://x"}, "OPENAI_BASE_URL or OPENAI_MODEL is not valid"),
        ({"ANTHROPIC_MODEL": "any"}, "ANTHROPIC_MODEL is not valid"),
    ],
)
def test_an_unusable_seat_is_reported_and_the_others_are_found(changed: dict[str, str], message: str):
    report = probe([], {**ENVIRON, **changed})
    assert len(report.found) == 4
    (why,) = report.missing
    assert message in why


@pytest.mark.parametrize(
    ("changed", "url"),
    [
        ({"ANTHROPIC_BASE_URL": "https://llm.example.com"}, "https://llm.example.com/v1"),
        ({"ANTHROPIC_BASE_URL": "https://llm.example.com/a/v1"}, "https://llm.example.com/a/v1"),
    ],
)
def test_anthropics_address_is_taken_with_and_without_its_path(changed: dict[str, str], url: str):
    assert config_of(probe([], {**ENVIRON, **changed}), "anthropic").url == url


def test_a_table_with_the_key_replaces_the_seat_of_the_environment():
    table = {"name": "mine", "provider": "anthropic", "models": MODELS}
    report = probe([table], {"ANTHROPIC_API_KEY": KEY})
    assert [offer.name for offer in report.found] == ["mine"]


def test_every_named_seat_has_a_key():
    for provider in VARIABLE_PREFIXES:
        assert list_key_variables(provider)
