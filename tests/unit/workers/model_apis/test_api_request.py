"""Requests of the model APIs are validated."""

from __future__ import annotations

from typing import Any

import pytest

from gridq.errors import StageError
from gridq.protocol.models import Effect, StageCall
from workers.model_apis.api_request import parse_api_request
from workers.model_apis.model_catalogue import ModelOffer
from workers.model_apis.stages import choose_model, estimate_usage

STAGE = StageCall(id="s", name="llm_api_request", path="$.a", implementation="llm:api_request")
MESSAGES = [{"role": "user", "content": "hi"}]
PATHS = [
    ("openai", "chat/completions", {"messages": MESSAGES}),
    ("openai", "completions", {"prompt": "x"}),
    ("openai", "completions", {"prompt": [[1, 2], [3]]}),
    ("openai", "embeddings", {"input": ["a", "b"], "encoding_format": "base64", "dimensions": 3}),
    ("openai", "embeddings", {"input": [1, 2]}),
    ("anthropic", "messages", {"messages": MESSAGES, "max_tokens": 1}),
    ("responses", "responses", {"input": "hi"}),
    ("responses", "responses", {"input": MESSAGES, "store": True, "background": False}),
]


def parse(api: Any, path: Any, body: Any, **more: Any) -> Any:
    return parse_api_request(STAGE, {"api": api, "path": path, "body": body, **more})


@pytest.mark.parametrize(("api", "path", "body"), PATHS)
def test_valid_requests_pass_unchanged(api: str, path: str, body: dict[str, Any]):
    body = {**body, "model": "m", "vendor_thing": {"deep": [1, None]}, "temperature": None}
    made = parse(api, path, body)
    assert made.body == body
    assert made.model == "m"
    assert made.wants_embeddings == (path == "embeddings")
    assert parse(api, path, body, model="by config").model == "by config"
    several = parse(api, path, {**body, "models": ["n"]}, model=["m", "n"])
    assert (several.model, several.body) == (["m", "n"], body)  # the grid's own field is not the endpoint's
    assert parse(api, path, {**body, "models": ["n"]}).body["models"] == ["n"]


@pytest.mark.parametrize(
    ("api", "path", "body", "param"),
    [
        ("soap", "messages", {}, "api"),
        (None, "messages", {}, "api"),
        (["openai"], "completions", {}, "api"),
        ("openai", "messages", {}, "path"),
        ("responses", "chat/completions", {}, "path"),
        ("responses", "responses", {}, "input"),
        ("responses", "responses", {"input": "hi", "previous_response_id": "resp_1"}, "previous_response_id"),
        ("responses", "responses", {"input": "hi", "conversation": {"id": "c"}}, "conversation"),
        ("responses", "responses", {"input": "hi", "stop": [None]}, "stop"),
        ("responses", "responses", {"input": [{"type": "item_reference", "id": "i"}]}, "input[0]"),
        ("responses", "responses", {"input": [{"role": "user", "content": ["x"]}]}, "input[0].content[0]"),
        ("anthropic", ["messages"], {}, "path"),
        ("openai", "completions", "x", "body"),
        ("openai", "chat/completions", {}, "messages"),
        ("openai", "chat/completions", {"messages": []}, "messages"),
        ("openai", "chat/completions", {"messages": "hi"}, "messages"),
        ("openai", "chat/completions", {"messages": [3]}, "messages"),
        ("openai", "chat/completions", {"messages": [{"content": "x"}]}, "messages[0].role"),
        ("openai", "chat/completions", {"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        (
            "openai",
            "chat/completions",
            {"messages": [{"role": "user", "content": [3]}]},
            "messages[0].content[0]",
        ),
        ("openai", "chat/completions", {"messages": MESSAGES, "temperature": "hot"}, "temperature"),
        ("openai", "chat/completions", {"messages": MESSAGES, "max_tokens": True}, "max_tokens"),
        ("openai", "chat/completions", {"messages": MESSAGES, "n": 0}, "n"),
        ("openai", "chat/completions", {"messages": MESSAGES, "tools": [3]}, "tools"),
        ("openai", "chat/completions", {"messages": MESSAGES, "stream": "yes"}, "stream"),
        ("openai", "chat/completions", {"messages": MESSAGES, "stop": [3]}, "stop"),
        ("openai", "chat/completions", {"messages": MESSAGES, "stream_options": True}, "stream_options"),
        ("openai", "completions", {}, "prompt"),
        ("openai", "completions", {"prompt": [True]}, "prompt"),
        ("openai", "embeddings", {"input": ""}, "input"),
        ("openai", "embeddings", {"input": ["a", 1]}, "input"),
        ("openai", "embeddings", {"input": "x", "encoding_format": "hex"}, "encoding_format"),
        ("openai", "embeddings", {"input": "x", "dimensions": 0}, "dimensions"),
        ("anthropic", "messages", {"messages": MESSAGES}, "max_tokens"),
        ("anthropic", "messages", {"messages": MESSAGES, "max_tokens": 1, "system": 3}, "system"),
        (
            "anthropic",
            "messages",
            {"messages": MESSAGES, "max_tokens": 1, "tool_choice": "any"},
            "tool_choice",
        ),
    ],
)
def test_a_malformed_request_names_its_field(api: Any, path: Any, body: Any, param: str):
    with pytest.raises(StageError) as caught:
        parse(api, path, body)
    assert caught.value.details["param"] == param
    assert caught.value.details["status"] == 400
    assert str(caught.value.path).startswith("$.a.input")
    assert str(caught.value.path).endswith(param)


def test_an_input_that_is_not_an_object_is_refused():
    with pytest.raises(StageError, match="is not an object") as caught:
        parse_api_request(STAGE, "hello")
    assert caught.value.details["status"] == 400


def test_the_configured_model_is_chosen():
    a, b = ModelOffer(name="a"), ModelOffer(name="b", embeddings=True)
    stage = STAGE.model_copy(update={"effects": [Effect(effect="Llm", model="any")]})
    body = {"messages": MESSAGES, "model": "b"}
    assert choose_model(stage, parse("openai", "chat/completions", body), [a, b]) == b
    assert choose_model(stage, parse("openai", "chat/completions", body, model="a"), [a, b]) == a
    assert choose_model(stage, parse("openai", "embeddings", {"input": "x"}), [a, b]) == b


def test_an_estimate_counts_the_body():
    def tokens(path: str, **body: Any) -> int:
        return estimate_usage(STAGE, {"api": "openai", "path": path, "body": body}).tokens

    assert tokens("embeddings", input="x" * 400) == 101
    assert tokens("completions", prompt="x" * 400, max_tokens=50) == 151
    assert tokens("completions", prompt="x" * 400, max_tokens=50, n=3) == 251
    assert tokens("responses", input="x" * 400, max_output_tokens=50) == 151
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 10**6}}
    message = {"role": "user", "content": [picture]}
    assert tokens("chat/completions", messages=[message], max_tokens=1) < 1700
    assert estimate_usage(STAGE, {"body": "no record"}).tokens > 0
