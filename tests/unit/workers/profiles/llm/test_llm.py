"""Seats at endpoints: how they are found, what they cost, that a key never shows."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gridq.errors import ConfigError, SeatDegraded
from gridq.profiles.profile import StageContext
from gridq.protocol.models import Effect, Limit, StageCall, Usage
from tests.fakes.openai_server import KEY, OpenAIServer
from workers.model_apis.http.locality import is_local_url
from workers.profiles.llm import LlmProfile
from workers.profiles.llm.capability import LlmCapability
from workers.profiles.llm.probe import probe

REMOTE = "https://llm.example.com/v1"
ENVIRONMENT = (
    "ANTHROPIC_API_KEY, OPENAI_API_KEY, MISTRAL_API_KEY, GEMINI_API_KEY or GOOGLE_API_KEY, VERTEX_AI_PROJECT"
)
MODELS = [{"name": "echo", "families": ["talk"], "price_in": 2.5, "price_out": 10.0}]


def seat(**fields: Any) -> dict[str, Any]:
    return {"name": "main", "url": REMOTE, "models": MODELS, **fields}


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    with OpenAIServer(key=KEY) as running:
        yield running


def test_a_declared_seat_is_offered_without_requests():
    report = probe([seat(key_env="MY_KEY", budget=1.5, concurrency=7)], {"MY_KEY": KEY})
    (offer,) = report.found
    assert (offer.name, offer.kind, offer.concurrency) == ("main", "llm", 7)
    assert offer.limits == (Limit(resource="money", window="month", amount=1_500_000),)
    capability = LlmCapability.model_validate(offer.capability)
    assert LlmProfile().queues(capability) == ["llm:echo", "llm:talk", "llm:any"]
    assert capability.host == "llm.example.com"
    assert KEY not in offer.model_dump_json()
    assert report.missing == ["Not set in the environment: " + ENVIRONMENT]


def test_no_budget_differs_from_a_budget_of_zero():
    none, nothing = probe([seat(), seat(name="zero", url=REMOTE + "/2", budget=0)], {}).found
    assert none.limits == ()
    assert nothing.limits == (Limit(resource="money", window="month", amount=0),)


@pytest.mark.parametrize(
    ("fields", "path", "expected"),
    [
        ({"budget": -1}, "budget", "a number from 0"),
        ({"budget": True}, "budget", "a number from 0"),
        ({"budget": "5"}, "budget", "a number from 0"),
        ({"budget": float("nan")}, "budget", "a number from 0"),
        ({"budget": 1e-7}, "budget", "six decimals"),
        ({"budgets": [{"tokens": 5, "per": "5 hours"}]}, "budgets.0.per", "such as 5h"),
        ({"budgets": [{"tokens": 5, "per": "5h"}, {"jobs": 5, "per": "day"}]}, "budgets.1.jobs", "requests"),
        ({"budgets": [{"dollars": -1, "per": "day"}]}, "budgets.0.dollars", "a number from 0"),
        ({"budgets": [{"tokens": 5}]}, "budgets.0", "per = month"),
        ({"budget": 5, "budgets": [{"dollars": 5, "per": "month"}]}, "budgets", "one of them"),
    ],
)
@pytest.mark.parametrize("more", [{}, {"cli": "claude", "url": None}])
def test_an_invalid_budget_is_named(
    fields: dict[str, Any], path: str, expected: str, more: dict[str, Any]
) -> None:
    table = {key: value for key, value in seat(**fields, **more).items() if value is not None}
    with pytest.raises(ConfigError) as caught:
        probe([table], {})
    assert caught.value.path == f"llm[0].{path}"
    assert expected in caught.value.expected
    assert "Value error" not in str(caught.value)


def test_an_empty_configuration_is_reported():
    report = probe([], {})
    assert report.found == []
    assert "OPENAI_API_KEY" in report.missing[0]


def test_a_missing_key_is_reported(tmp_path: Path):
    tables = [seat(key_env="NO_KEY"), seat(name="b", key_file=str(tmp_path / "gone"))]
    report = probe(tables, {})
    assert report.found == []
    assert "NO_KEY" in report.missing[0]
    assert "key file" in report.missing[1]
    assert len(report.missing) == 3


@pytest.mark.parametrize(
    ("tables", "path"),
    [
        ([seat(url="ftp://x")], "llm[0].url"),
        ([seat(url="https://me:secret@llm.example.com/v1")], "llm[0].url"),
        ([seat(url="https://llm.example.com:99999/v1")], "llm[0].url"),
        ([seat(url="https://llm.example.com:x/v1")], "llm[0].url"),
        ([seat(url="https://:443/v1")], "llm[0].url"),
        ([seat(url="https://[::1/v1")], "llm[0].url"),
        ([seat(url="https://ü..example/v1")], "llm[0].url"),
        ([seat(url=f"https://{'a' * 64}.example/v1")], "llm[0].url"),
        ([seat(headers={"X-Team": "a\nHost: b"})], "llm[0].headers"),
        ([seat(headers={"X-Team": "日本"})], "llm[0].headers"),
        ([seat(headers={"X Team": "a"})], "llm[0].headers"),
        ([seat(headers={"content-length": "5"})], "llm[0].headers"),
        ([seat(headers={"X-Team": "a", "x-team": "b"})], "llm[0].headers"),
        ([seat(typo=1)], "llm[0].typo"),
        ([seat(concurrency=0)], "llm[0].concurrency"),
        ([seat(models=[{"name": "any"}])], "llm[0].models.0.name"),
        ([seat(key_env="A", key_file="b")], "llm[0]"),
        ({"name": "main", "url": "not a url"}, "llm[0].url"),
        ([seat(), seat()], "llm[1].name"),
        ([seat(key_env="A"), seat(name="b", key_env="A")], "llm[1]"),
        ([seat(url="http://localhost:11434/v1")], "llm[0].url"),
    ],
)
def test_a_wrong_table_names_its_place(tables: list[Any], path: str):
    with pytest.raises(ConfigError) as caught:
        probe(tables, {})
    assert caught.value.path == path


@pytest.mark.parametrize(
    "other",
    [
        {"key_env": "A", "url": "https://LLM.example.com:443/v1/"},
        {"key_env": "B"},
        {"key_file": "key"},
        {"key_file": "./linked"},
    ],
)
def test_one_key_at_one_endpoint_is_one_seat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: dict[str, str]
):
    monkeypatch.chdir(tmp_path)
    Path("key").write_text(f"{KEY}\n", "utf-8")
    Path("linked").symlink_to("key")
    environ = {"A": KEY, "B": f"{KEY} ", "C": "another"}
    with pytest.raises(ConfigError, match="one login at one endpoint") as caught:
        probe([seat(key_env="A"), seat(name="b", **other)], environ)
    assert KEY not in str(caught.value)
    assert len(probe([seat(key_env="A"), seat(name="b", key_env="C")], environ).found) == 2


def test_a_key_used_by_a_table_makes_no_environment_seat():
    table = seat(url="https://api.mistral.ai/v1", key_env="MINE")
    for key, names in ((KEY, ["main"]), ("another", ["main", "mistral"])):
        environ = {"MINE": KEY, "MISTRAL_API_KEY": key, "MISTRAL_MODEL": "echo"}
        assert [offer.name for offer in probe([table], environ).found] == names


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:8000/v1",
        "http://127.8.8.8/v1",
        "http://[::1]:8000/v1",
        "http://[::ffff:127.0.0.1]/v1",
        "http://0.0.0.0:8000",
        "http://LOCALHOST./v1",
        "http://api.localhost/v1",
        f"http://{socket.gethostname()}:8000/v1",
    ],
)
def test_loopback_addresses_are_local(url: str):
    assert is_local_url(url)


@pytest.mark.parametrize(
    "url", [REMOTE, "http://192.0.2.7/v1", "http://[2001:db8::1]/v1", "http://localhost.com"]
)
def test_other_addresses_are_not_local(url: str):
    assert not is_local_url(url)


def test_a_local_endpoint_in_the_environment_is_only_reported():
    environ = {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": "http://localhost:11434/v1"}
    report = probe([seat()], environ)
    assert [offer.name for offer in report.found] == ["main"]
    assert "gpu profile" in report.missing[0]


def test_undeclared_models_are_listed_by_the_endpoint(server: OpenAIServer):
    table = seat(url=server.url, models=[], key_env="K", allow_loopback=True)
    (offer,) = probe([table], {"K": KEY}).found
    assert [model["name"] for model in offer.capability["models"]] == ["echo", "other"]


def test_refusing_and_hanging_endpoints_end_within_the_probe_time(server: OpenAIServer):
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        hanging = f"http://127.0.0.1:{deaf.getsockname()[1]}/v1"
        tables = [
            seat(name=name, url=url, models=[], key_env="K", allow_loopback=True)
            for name, url in [("refused", server.url), ("deaf", hanging), ("deaf2", hanging + "/2")]
        ]
        began = time.monotonic()
        report = probe(tables, {"K": "wrong"})
        assert time.monotonic() - began < 4, "a probe has two seconds (four allowed on a busy machine)"
    assert report.found == []
    assert "rejected the key; give the seat a valid key" in report.missing[0]
    assert "declare" not in report.missing[0]
    assert len(report.missing) == 4


def opened(server: OpenAIServer, monkeypatch: pytest.MonkeyPatch, key: str = KEY) -> LlmProfile:
    monkeypatch.setenv("TEST_KEY", key)
    profile = LlmProfile()
    (offer,) = profile.probe([seat(url=server.url, key_env="TEST_KEY", allow_loopback=True)]).found
    profile.open(LlmCapability.model_validate(offer.capability), offer.config)
    return profile


CALL = StageCall(
    id="s", name="s", path="$.a", implementation="llm:complete", effects=[Effect(effect="Llm", model="talk")]
)


def test_a_stage_runs_streams_and_is_priced(server: OpenAIServer, monkeypatch: pytest.MonkeyPatch):
    profile = opened(server, monkeypatch)
    pieces: list[Any] = []
    context = StageContext(emit=pieces.append)
    assert profile.run(CALL, "one two", context) == "one two "
    assert pieces == ["one ", "two "]
    assert context.usage == Usage(tokens_in=2, tokens_out=2, micro_dollars=25)
    assert server.requests[0]["body"]["model"] == "echo"
    profile.close()


def test_a_rejected_key_is_reported_and_not_logged(
    server: OpenAIServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.DEBUG)
    wrong = "sk-wrong-key-987654"
    profile = opened(server, monkeypatch, key=wrong)
    with pytest.raises(SeatDegraded) as caught:
        profile.run(CALL, "a secret prompt", StageContext())
    assert caught.value.path == "$.a"
    assert caught.value.details["state"] == "key refused"
    host = f'{{provider="{server.url.split("/")[2]}"}}'
    assert profile.metrics() == {f"api_calls_total{host}": 1.0, f"api_failures_total{host}": 1.0}
    profile.close()
    assert wrong not in caplog.text
    assert "secret prompt" not in caplog.text
    assert wrong not in caught.value.to_json()
