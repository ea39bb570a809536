"""Every field of the vendors' request types has a row in every table that starts at its format."""

from __future__ import annotations

from typing import Any

import pytest
from anthropic.types import message_create_params as messages
from anthropic.types.beta import message_create_params as beta_messages
from openai.types import embedding_create_params as embeddings
from openai.types.chat import completion_create_params as chat
from openai.types.responses import response_create_params as responses

from gridq.errors import StageError
from workers.model_apis.fields.chat import (
    CHAT_TO_ENGINE,
    CHAT_TO_GOOGLE,
    CHAT_TO_MESSAGES,
    CHAT_TO_PROGRAM,
    EMBEDDINGS_TO_GOOGLE,
    LEGACY,
)
from workers.model_apis.fields.messages import MESSAGES_TO_CHAT, MESSAGES_TO_GOOGLE, MESSAGES_TO_OPENAI
from workers.model_apis.fields.responses import (
    RESPONSES_TO_CHAT,
    RESPONSES_TO_OPENAI,
    RESPONSES_TO_RESPONSES,
)
from workers.model_apis.fields.table import (
    FieldTable,
    Use,
    always_refused,
    hint,
    passed,
    refused,
    rename_errors,
    rename_place,
    translated,
)

CHATS = (CHAT_TO_MESSAGES, CHAT_TO_GOOGLE, CHAT_TO_PROGRAM, CHAT_TO_ENGINE)
MESSAGES = (MESSAGES_TO_CHAT, MESSAGES_TO_OPENAI, MESSAGES_TO_GOOGLE)
RESPONSES = (RESPONSES_TO_CHAT, RESPONSES_TO_OPENAI)
ALL = (*CHATS, EMBEDDINGS_TO_GOOGLE, *MESSAGES, *RESPONSES, RESPONSES_TO_RESPONSES)


@pytest.mark.parametrize(
    ("request_type", "tables", "before"),
    [
        (chat.CompletionCreateParamsStreaming, CHATS, LEGACY),
        (embeddings.EmbeddingCreateParams, (EMBEDDINGS_TO_GOOGLE,), {}),
        (messages.MessageCreateParamsStreaming, MESSAGES, {}),
        (beta_messages.MessageCreateParamsStreaming, MESSAGES, {}),
        (responses.ResponseCreateParamsStreaming, RESPONSES, {}),
    ],
)
def test_every_field_of_a_vendors_request_has_a_row(
    request_type: type, tables: tuple[FieldTable, ...], before: dict[str, Any]
):
    fields = {*request_type.__required_keys__, *request_type.__optional_keys__}  # type: ignore[attr-defined]
    assert len(fields) > 3
    for table in tables:
        assert fields - before.keys() - table.rules.keys() == set(), table.target


STRICT = [table for table in ALL if table not in (CHAT_TO_ENGINE, RESPONSES_TO_RESPONSES)]


@pytest.mark.parametrize("table", STRICT, ids=lambda table: f"{table.path} at {table.target}")
def test_what_no_row_names_is_refused_by_name(table: FieldTable):
    dropped: list[str] = []
    with pytest.raises(StageError) as caught:
        table.split({"a_field_of_tomorrow": 0}, dropped.append)
    assert caught.value.details["param"] == "a_field_of_tomorrow"
    assert caught.value.details["status"] == 400
    assert "a_field_of_tomorrow" in caught.value.details["fix"]
    assert table.split({"a_field_of_tomorrow": None}, dropped.append) == ({}, {})


@pytest.mark.parametrize("table", ALL, ids=lambda table: f"{table.path} at {table.target}")
def test_a_row_does_what_it_says(table: FieldTable):
    for name, rule in table.rules.items():
        dropped: list[str] = []
        if rule.use is Use.REFUSED:
            with pytest.raises(StageError) as caught:
                table.split({name: "a value"}, dropped.append)
            assert caught.value.details["param"] == name
            continue
        kept, rest = table.split({name: "a value"}, dropped.append)
        assert kept == ({rule.becomes or name: "a value"} if rule.use is Use.PASSED else {})
        assert rest == ({name: "a value"} if rule.use is Use.TRANSLATED else {})
        assert dropped == ([name] if rule.use is Use.HINT else [])


TABLE = FieldTable(
    "a",
    "b",
    "at b",
    {
        "same": passed(),
        "named": passed("Named"),
        "penalty": hint(0),
        "seed": hint(),
        "n": refused(1, expected="1"),
        "search": always_refused(),
        "stop": translated(),
    },
)


@pytest.mark.parametrize(
    ("field", "dropped"),
    [
        ({"penalty": 0}, []),
        ({"penalty": 0.0}, []),
        ({"penalty": 0.5}, ["penalty"]),
        ({"penalty": False}, []),
        ({"seed": 0}, ["seed"]),
        ({"seed": None}, []),
        ({"seed": {}}, []),
        ({"n": 1}, []),
        ({"n": None}, []),
        ({"search": None}, []),
    ],
)
def test_a_neutral_value_is_none(field: dict[str, Any], dropped: list[str]):
    found: list[str] = []
    assert TABLE.split(field, found.append) == ({}, {})
    assert found == dropped


@pytest.mark.parametrize("field", [{"n": 2}, {"n": 0}, {"n": True}, {"search": {}}, {"search": False}])
def test_what_is_not_neutral_is_refused(field: dict[str, Any]):
    with pytest.raises(StageError) as caught:
        TABLE.split(field, print)
    assert caught.value.details["param"] == next(iter(field))


def test_null_is_no_field():
    fields = {"same": 1, "named": 2, "stop": "x"}
    assert TABLE.split(fields, print) == ({"same": 1, "Named": 2}, {"stop": "x"})
    assert TABLE.split(dict.fromkeys(fields), print) == ({}, {})


NAMES = {
    "user": "metadata.user_id",
    "format": "text.format",
    "tools[].function": "tools[]",
    "messages": "input",
}


@pytest.mark.parametrize(
    ("place", "renamed"),
    [
        ("user", "metadata.user_id"),
        ("username", "username"),
        ("format.schema.a", "text.format.schema.a"),
        ("tools[3].function.strict", "tools[].strict"),
        ("messages[2].content[1]", "input[].content[]"),
        ("seed", "seed"),
    ],
)
def test_a_second_translation_speaks_of_the_clients_fields(place: str, renamed: str):
    assert rename_place(place, NAMES) == renamed


def test_an_error_of_a_second_translation_names_the_clients_field():
    with pytest.raises(StageError) as caught, rename_errors(NAMES):
        FieldTable("a", "b", "at b", {"user": refused()}).split({"user": "u"}, print)
    assert caught.value.details["param"] == "metadata.user_id"
    assert caught.value.details["fix"] == "remove 'metadata.user_id'"
    own = StageError("no", {"param": "user", "status": 400})  # the endpoint's, which says what it saw
    with pytest.raises(StageError) as caught, rename_errors(NAMES):
        raise own
    assert caught.value is own


CLIENTS: dict[str, tuple[tuple[FieldTable, ...], dict[str, Any]]] = {
    "Claude Code": (
        MESSAGES,
        {
            "model": "m",
            "messages": [],
            "system": [],
            "tools": [],
            "max_tokens": 9,
            "temperature": 1,
            "stream": True,
            "metadata": {"user_id": "u"},
            "thinking": {"type": "adaptive"},
            "output_config": {"effort": "high"},
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            "speed": "fast",
            "cache_control": {"type": "ephemeral"},
            "diagnostics": {"previous_message_id": None},
        },
    ),
    "Codex": (
        RESPONSES,
        {
            "model": "m",
            "instructions": "s",
            "input": [],
            "tools": [],
            "tool_choice": "auto",
            "stream": True,
            "parallel_tool_calls": False,
            "reasoning": {"effort": "high", "summary": "auto"},
            "store": False,
            "include": ["reasoning.encrypted_content"],
            "service_tier": "priority",
            "prompt_cache_key": "k",
            "text": {"verbosity": "low"},
            "client_metadata": {"a": "b"},
        },
    ),
    "OpenAI Agents, AI SDK": (
        RESPONSES,
        {
            "model": "m",
            "input": "x",
            "metadata": {"a": "b"},
            "truncation": "auto",
            "max_tool_calls": 3,
            "safety_identifier": "s",
            "user": "u",
            "prompt_cache_retention": "24h",
            "top_logprobs": 0,
            "temperature": 1,
            "top_p": 1,
            "max_output_tokens": 9,
        },
    ),
    "LangChain, LlamaIndex, Open WebUI, Aider": (
        CHATS,
        {
            "model": "m",
            "messages": [],
            "stream": True,
            "stream_options": {"include_usage": True},
            "n": 1,
            "temperature": 0.7,
            "top_p": 1,
            "frequency_penalty": 0,
            "presence_penalty": 0,
            "seed": 3,
            "max_tokens": 9,
            "max_completion_tokens": 9,
            "logprobs": False,
            "user": "u",
            "metadata": {"a": "b"},
            "chat_id": "c",
            "session_id": "s",
            "keep_alive": "5m",
            "options": {"num_ctx": 4096},
        },
    ),
    "Cline, Kilo, OpenRouter's": (
        CHATS,
        {
            "model": "m",
            "messages": [],
            "reasoning": {"effort": "high"},
            "include_reasoning": True,
            "reasoning_effort": "high",
            "transforms": ["middle-out"],
            "provider": {"sort": "price"},
            "usage": {"include": True},
            "thinking": {"type": "enabled", "budget_tokens": 1024},
            "verbosity": "low",
            "prompt_cache_key": "k",
            "plugins": [],
            "store": False,
        },
    ),
}
"""By client: the tables for its requests, and fields that it sends."""


@pytest.mark.parametrize(
    ("table", "fields"),
    [
        pytest.param(table, fields, id=f"{name} at {table.target}")
        for name, (tables, fields) in CLIENTS.items()
        for table in tables
    ],
)
def test_no_real_client_is_refused_for_what_it_always_sends(table: FieldTable, fields: dict[str, Any]):
    kept, stated = table.split(fields, lambda place: None)
    assert {"messages", "input"} & {*kept, *stated}
