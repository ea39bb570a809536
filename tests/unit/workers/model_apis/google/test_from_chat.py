"""Chat requests as Google's contents, and its answers as chat completions."""

from __future__ import annotations

from typing import Any

import pytest

from gridq.errors import SeatUnavailable, StageError
from workers.model_apis.api_request import CHAT, COMPLETIONS, translate_request
from workers.model_apis.google.answers import ContentChunks, build_completion, build_embeddings
from workers.model_apis.google.from_chat import (
    PLACEHOLDER_SIGNATURE,
    translate_embedding_request,
    translate_to_google,
)
from workers.model_apis.openai.from_messages import MessagesToChat
from workers.model_apis.usage import parse_google_usage

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "d", "parameters": SCHEMA}}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bern"}'}}
HELLO = [{"role": "user", "content": "hi"}]


def body(**fields: Any) -> dict[str, Any]:
    return {"model": "gemini-2.5-flash", "messages": HELLO, **fields}


def google(**fields: Any) -> dict[str, Any]:
    return translate_request(translate_to_google, CHAT, body(**fields))


def config(**fields: Any) -> Any:
    return google(**fields)["generationConfig"]


def test_a_conversation_becomes_turns_of_two_roles():
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "developer", "content": [{"type": "text", "text": "be kind"}]},
        {"role": "user", "content": "weather?"},
        {"role": "user", "content": [{"type": "text", "text": "in Bern"}, {"type": "text", "text": ""}]},
        {"role": "assistant", "content": "I look", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": '{"sun": true}'},
        {"role": "assistant", "content": None, "tool_calls": [{**CALL, "id": "c2"}]},
        {"role": "tool", "tool_call_id": "c2", "content": "rain"},
    ]
    call = {"name": "weather", "args": {"city": "Bern"}}
    translated = google(messages=messages)
    assert translated["systemInstruction"] == {"parts": [{"text": "be brief\n\nbe kind"}]}
    assert translated["contents"] == [
        {"role": "user", "parts": [{"text": "weather?"}, {"text": "in Bern"}]},
        {"role": "model", "parts": [{"text": "I look"}, {"functionCall": {**call, "id": "c1"}}]},
        {
            "role": "user",
            "parts": [{"functionResponse": {"name": "weather", "id": "c1", "response": {"sun": True}}}],
        },
        {"role": "model", "parts": [{"functionCall": {**call, "id": "c2"}}]},
        {
            "role": "user",
            "parts": [{"functionResponse": {"name": "weather", "id": "c2", "response": {"output": "rain"}}}],
        },
    ]
    assert "'id'" not in str(translate_to_google(CHAT, body(messages=messages), is_vertex=True))


def test_a_signature_is_sent_to_models_that_need_one():
    signed = {**CALL, "extra_content": {"google": {"thought_signature": "c2ln"}}}

    def sent(model: str, *calls: Any) -> list[Any]:
        translated = google(model=model, messages=[*HELLO, {"role": "assistant", "tool_calls": list(calls)}])
        return [part.get("thoughtSignature") for part in translated["contents"][1]["parts"]]

    assert sent("gemini-3-flash", signed) == ["c2ln"]
    assert sent("gemini-3-flash", CALL, CALL) == [PLACEHOLDER_SIGNATURE, None], (
        "the first of a step alone needs one"
    )
    assert sent("gemini-2.5-flash", CALL) == [None]
    assert sent("gemini-2.5-flash", signed) == ["c2ln"]


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}},
            {"inlineData": {"mimeType": "image/png", "data": "QUJD"}},
        ),
        (
            {"type": "image_url", "image_url": {"url": "https://x.example/a/b.jpg?c=1"}},
            {"fileData": {"fileUri": "https://x.example/a/b.jpg?c=1", "mimeType": "image/jpeg"}},
        ),
        (
            {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,QUJD"}},
            {"inlineData": {"mimeType": "application/pdf", "data": "QUJD"}},
        ),
        (
            {"type": "input_audio", "input_audio": {"data": "QUJD", "format": "wav"}},
            {"inlineData": {"mimeType": "audio/wav", "data": "QUJD"}},
        ),
    ],
)
def test_images_files_and_audio_are_translated(part: dict[str, Any], expected: dict[str, Any]):
    assert google(messages=[{"role": "user", "content": [part]}])["contents"][0]["parts"] == [expected]


def test_generation_settings_are_translated():
    assert config(
        max_tokens=5,
        temperature=0.5,
        top_p=0.9,
        top_k=3,
        seed=7,
        n=2,
        stop="END",
        presence_penalty=0.1,
        frequency_penalty=0.2,
    ) == {
        "maxOutputTokens": 5,
        "temperature": 0.5,
        "topP": 0.9,
        "topK": 3,
        "seed": 7,
        "candidateCount": 2,
        "stopSequences": ["END"],
        "presencePenalty": 0.1,
        "frequencyPenalty": 0.2,
    }
    assert "generationConfig" not in google(n=1, stream_options={"include_usage": True}, user="u")
    wanted = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
    expected = {"responseMimeType": "application/json", "responseJsonSchema": SCHEMA}
    assert config(response_format=wanted) == expected
    assert config(response_format={"type": "json_object"}) == {"responseMimeType": "application/json"}


@pytest.mark.parametrize(
    ("choice", "mode"),
    [
        (None, {"mode": "AUTO"}),
        ("required", {"mode": "ANY"}),
        ("none", {"mode": "NONE"}),
        (
            {"type": "function", "function": {"name": "weather"}},
            {"mode": "ANY", "allowedFunctionNames": ["weather"]},
        ),
    ],
)
def test_tools_and_tool_choice_are_translated(choice: Any, mode: dict[str, Any]):
    translated = google(tools=[WEATHER], tool_choice=choice)
    declared = {"name": "weather", "description": "d", "parametersJsonSchema": SCHEMA}
    assert translated["tools"] == [{"functionDeclarations": [declared]}]
    assert translated["toolConfig"] == {"functionCallingConfig": mode}


@pytest.mark.parametrize(
    ("model", "fields", "expected"),
    [
        ("gemini-2.5-pro", {"reasoning_effort": "medium"}, {"thinkingBudget": 8192}),
        ("gemini-2.5-flash", {"reasoning_effort": "none"}, {"thinkingBudget": 0}),
        ("gemini-2.5-flash", {"thinking": {"type": "disabled"}}, {"thinkingBudget": 0}),
        ("gemini-3-pro", {"reasoning_effort": "xhigh"}, {"thinkingLevel": "high"}),
        ("gemini-3-pro", {"reasoning_effort": "minimal"}, {"thinkingLevel": "low"}),
        ("gemini-flash-latest", {"reasoning_effort": "none"}, {"thinkingLevel": "minimal"}),
        (
            "gemini-3-pro",
            {"thinking": {"type": "enabled", "budget_tokens": 2000}, "reasoning_effort": "low"},
            {"includeThoughts": True, "thinkingBudget": 2000},
        ),
        ("gemini-3-pro", {"thinking": {"type": "adaptive"}}, {"includeThoughts": True}),
        ("gemma-3-27b-it", {"reasoning_effort": "high"}, None),
        ("gemini-3-pro", {}, None),
    ],
)
def test_thinking_settings_are_translated(
    model: str, fields: dict[str, Any], expected: dict[str, Any] | None
):
    assert google(model=model, **fields).get("generationConfig", {}).get("thinkingConfig") == expected


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logprobs": True}, "logprobs"),
        ({"logit_bias": {"1": 5}}, "logit_bias"),
        ({"functions": [{}]}, "functions"),
        ({"audio": {"voice": "x"}}, "audio"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"tools": [WEATHER], "tool_choice": "often"}, "tool_choice"),
        ({"response_format": {"type": "grammar"}}, "response_format.type"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"web_search_options": {"search_context_size": "low"}}, "web_search_options"),
        ({"messages": [{"role": "system", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "narrator", "content": "x"}]}, "messages[0].role"),
        (
            {"messages": [{"role": "tool", "tool_call_id": "nope", "content": "x"}]},
            "messages[0].tool_call_id",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "video"}]}]},
            "messages[0].content[0]",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "https://x/y"}]}]},
            "messages[0].content[0].image_url.url",
        ),
        (
            {
                "messages": [
                    {"role": "system", "content": [{"type": "image_url", "image_url": "https://x/y.png"}]}
                ]
            },
            "messages[0].content",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]},
            "messages[0].tool_calls[0].function",
        ),
        ({"response_format": {"type": "json_schema", "json_schema": 5}}, "body"),
    ],
)
def test_fields_without_a_counterpart_are_rejected_by_name(fields: dict[str, Any], param: str):
    with pytest.raises(StageError) as caught:
        google(**fields)
    assert (caught.value.details["param"], caught.value.details["status"]) == (param, 400)


def test_completions_and_tokens_are_refused():
    with pytest.raises(StageError) as caught:
        translate_to_google(COMPLETIONS, {"model": "m", "prompt": "x"})
    assert caught.value.details["param"] == "model"
    with pytest.raises(StageError) as caught:
        translate_embedding_request({"model": "m", "input": [[1, 2]]}, False)
    assert caught.value.details["param"] == "input"


def test_embeddings_are_translated_for_both_apis():
    request = {"model": "e", "input": ["a", "b"], "dimensions": 2}
    name, translated = translate_embedding_request(request, is_vertex=False)
    assert name == "batchEmbedContents"
    assert translated["requests"][1] == {
        "model": "models/e",
        "content": {"parts": [{"text": "b"}]},
        "outputDimensionality": 2,
    }
    answer = build_embeddings({"embeddings": [{"values": [1.0]}, {"values": [2.0]}]}, request)
    assert [each["embedding"] for each in answer["data"]] == [[1.0], [2.0]]
    assert answer["usage"]["prompt_tokens"] == 1, "by rule of thumb"
    name, translated = translate_embedding_request(request, is_vertex=True)
    assert (name, translated["instances"]) == ("predict", [{"content": "a"}, {"content": "b"}])
    vertex = {"embeddings": {"values": [3.0], "statistics": {"token_count": 4}}}
    answer = build_embeddings({"predictions": [vertex, vertex]}, request)
    assert (answer["usage"]["prompt_tokens"], answer["data"][1]["embedding"]) == (8, [3.0])


USED = {
    "promptTokenCount": 1000,
    "cachedContentTokenCount": 900,
    "toolUsePromptTokenCount": 5,
    "candidatesTokenCount": 10,
    "thoughtsTokenCount": 40,
    "promptTokensDetails": [{"modality": "AUDIO", "tokenCount": 50}, {"modality": "TEXT", "tokenCount": 950}],
}


def test_usage_counts_thoughts_as_output_and_cached_tokens_once():
    used = parse_google_usage(USED)
    assert (used.tokens_in, used.tokens_out) == (1005, 50)
    assert (used.tokens_cached, used.tokens_reasoning, used.tokens_audio_in) == (900, 40, 50)
    assert parse_google_usage(None).tokens_in == 0


def candidate(*parts: Any, reason: str | None = None) -> dict[str, Any]:
    entry: dict[str, Any] = {"index": 0, "content": {"role": "model", "parts": list(parts)}}
    return {"candidates": [entry | ({"finishReason": reason} if reason else {})], "responseId": "r"}


def test_a_whole_answer():
    thought = {"text": "hm", "thought": True}
    call = {"functionCall": {"name": "weather", "args": {"city": "Bern"}}, "thoughtSignature": "c2ln"}
    answer = {
        **candidate(thought, {"text": "I "}, {"text": "look"}, call, reason="STOP"),
        "usageMetadata": USED,
    }
    made = build_completion(answer, body())
    (choice,) = made["choices"]
    message = choice["message"]
    assert (message["content"], message["reasoning_content"], choice["finish_reason"]) == (
        "I look",
        "hm",
        "tool_calls",
    )
    assert message["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city": "Bern"}'}
    assert message["tool_calls"][0]["extra_content"] == {"google": {"thought_signature": "c2ln"}}
    assert made["usage"]["prompt_tokens_details"] == {"cached_tokens": 900, "audio_tokens": 50}
    assert made["usage"]["completion_tokens_details"] == {"reasoning_tokens": 40}
    assert build_completion(candidate({"text": "a"}, reason="STOP"), body())["usage"] is None


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("STOP", "stop"),
        ("MAX_TOKENS", "length"),
        ("SAFETY", "content_filter"),
        ("OTHER", "stop"),
        (None, "stop"),
    ],
)
def test_finish_reasons(reason: str | None, expected: str):
    assert (
        build_completion(candidate({"text": "a"}, reason=reason), body())["choices"][0]["finish_reason"]
        == expected
    )


def test_one_call_is_kept_if_the_request_takes_only_one():
    calls = [{"functionCall": {"name": name, "args": {}}} for name in ("first", "second")]
    for parallel, expected in ((False, ["first"]), (True, ["first", "second"]), (None, ["first", "second"])):
        request = body(tools=[WEATHER], parallel_tool_calls=parallel)
        (choice,) = build_completion(candidate(*calls, reason="STOP"), request)["choices"]
        assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == expected
        chunks = ContentChunks(request)
        made = [*chunks.add_event(candidate(calls[0])), *chunks.add_event(candidate(calls[1], reason="STOP"))]
        streamed = [each["choices"][0]["delta"].get("tool_calls", []) for each in made]
        assert [call["function"]["name"] for found in streamed for call in found] == expected
        assert made[-1]["choices"][0]["finish_reason"] == choice["finish_reason"] == "tool_calls"


def test_a_blocked_prompt_and_a_malformed_call_are_errors():
    blocked = {"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}}
    for read in (
        lambda each: build_completion(each, body()),
        lambda each: list(ContentChunks(body()).add_event(each)),
    ):
        with pytest.raises(StageError) as caught:
            read(blocked)
        assert caught.value.details["endpoint_code"] == "content_filter"
        assert "PROHIBITED_CONTENT" in caught.value.details["reason"]
        with pytest.raises(SeatUnavailable):
            read(candidate(reason="MALFORMED_FUNCTION_CALL"))
    with pytest.raises(ValueError, match="no candidates"):
        build_completion({"candidates": []}, body())


def test_a_streams_events_become_chunks_after_their_usage():
    chunks = ContentChunks(body())
    call = {"functionCall": {"name": "weather", "args": {}}}
    made = [
        *chunks.add_event(
            {**candidate({"text": "hm", "thought": True}), "usageMetadata": {"promptTokenCount": 1}}
        ),
        *chunks.add_event(candidate({"text": "a"}, call)),
        *chunks.add_event(candidate(call)),
        *chunks.add_event({**candidate(reason="STOP"), "usageMetadata": USED}),
    ]
    deltas = [each["choices"][0]["delta"] for each in made if each["choices"]]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert deltas[1:3] == [{"reasoning_content": "hm"}, {"content": "a"}]
    calls = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    assert [each["index"] for each in calls] == [0, 1]
    assert made[0]["choices"] == [], "the input is known before the first piece"
    assert "completion_tokens" not in made[0]["usage"]
    assert made[-1]["choices"][0]["finish_reason"] == "tool_calls"
    assert made[-2]["choices"] == []
    assert made[-2]["usage"]["completion_tokens"] == 50
    used = [each["usage"]["prompt_tokens"] for each in made if not each["choices"]]
    assert used == [1, 1005], "what is known of a stream that breaks off"


def test_the_thinking_field_of_messages_reaches_the_seat():
    class Inner:
        api, is_strict = "openai", False

    request = {"model": "gemini-3-pro", "max_tokens": 5, "messages": HELLO}
    request |= {"thinking": {"type": "enabled", "budget_tokens": 1024}, "output_config": {"effort": "low"}}
    translated = MessagesToChat(Inner(), Inner(), accepts_thinking=True)._translate(request, print)  # type: ignore[arg-type]
    assert (translated["thinking"], translated["reasoning_effort"]) == (request["thinking"], "low")
    assert "thinking" not in MessagesToChat(Inner(), Inner())._translate(request, print)  # type: ignore[arg-type]


def drops(**fields: Any) -> list[str]:
    """Return the places that a translation leaves out."""
    found: list[str] = []
    translate_to_google(CHAT, body(**fields), drop=found.append)
    return found


PICTURE = {"url": "data:image/png;base64,QUJD", "detail": "high"}


@pytest.mark.parametrize(
    ("fields", "dropped"),
    [
        ({"user": "u", "seed": 1, "verbosity": "high"}, ["user", "verbosity"]),
        ({"verbosity": "medium", "service_tier": "default", "min_p": 0}, []),
        ({"model": "gemma-3", "reasoning_effort": "high"}, ["reasoning_effort"]),
        ({"model": "gemini-3-pro", "reasoning_effort": "none"}, ["reasoning_effort"]),
        ({"model": "gemini-3-pro", "reasoning_effort": "max"}, ["reasoning_effort"]),
        ({"model": "gemini-3-pro", "thinking": {"type": "disabled"}}, ["thinking"]),
        ({"model": "gemini-3-flash", "reasoning_effort": "minimal"}, []),
        ({"model": "gemini-2.5-pro", "reasoning_effort": "none"}, []),
        (
            {"tools": [{**WEATHER, "function": {**WEATHER["function"], "strict": True}}]},  # type: ignore[dict-item]
            ["tools[0].function.strict"],
        ),
        ({"messages": [{"role": "user", "name": "ada", "content": "hi"}]}, ["messages[0].name"]),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": PICTURE}]}]},
            ["messages[0].content[0].image_url.detail"],
        ),
    ],
)
def test_what_has_no_effect_is_told_by_its_place(fields: dict[str, Any], dropped: list[str]):
    assert drops(**fields) == dropped


@pytest.mark.parametrize(("count", "is_taken"), [(5, True), (6, False)])
def test_google_takes_five_stop_sequences(count: int, is_taken: bool):
    stops = list("abcdefg")[:count]
    if is_taken:
        assert config(stop=stops)["stopSequences"] == stops
        return
    with pytest.raises(StageError) as caught:
        google(stop=stops)
    assert caught.value.details["param"] == "stop"
    assert "5" in caught.value.details["expected"]


@pytest.mark.parametrize(
    ("url", "sent"),
    [
        ("data:image/jpg;base64,QUJD", "image/jpeg"),
        ("data:image/heic;base64,QUJD", "image/heic"),
        ("data:application/json;base64,e30=", "text/plain"),
        ("data:text/csv;base64,QUJD", "text/csv"),
        ("data:image/gif;base64,QUJD", None),
        ("data:application/zip;base64,QUJD", None),
    ],
)
def test_data_of_a_type_that_google_does_not_take_is_refused(url: str, sent: str | None):
    part = {"type": "image_url", "image_url": {"url": url}}
    messages = [{"role": "user", "content": [part]}]
    if sent:
        assert google(messages=messages)["contents"][0]["parts"][0]["inlineData"]["mimeType"] == sent
        return
    with pytest.raises(StageError) as caught:
        google(messages=messages)
    assert caught.value.details["param"] == "messages[0].content[0].image_url.url"


def test_a_file_may_be_bare_base64():
    part = {"type": "file", "file": {"filename": "a.pdf", "file_data": "JVBE"}}
    made = google(messages=[{"role": "user", "content": [part]}])
    assert made["contents"][0]["parts"][0]["inlineData"] == {"mimeType": "application/pdf", "data": "JVBE"}
