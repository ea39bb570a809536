"""The tables of chats and embeddings of the OpenAI API format at seats of other formats.

`openai.legacy_functions` comes before them, with the table LEGACY.

Sources: `openai.types`, the reference of Anthropic's Messages and of Google's `generateContent`, and for
fields that are not OpenAI's own what clients of OpenRouter, vLLM, Ollama and LiteLLM send.
"""

from __future__ import annotations

from collections.abc import Mapping

from gridq.protocol.models import Json
from workers.model_apis.api_request import CHAT, EMBEDDINGS
from workers.model_apis.fields.table import (
    Drop,
    FieldTable,
    Rule,
    add_inner_hints,
    always_refused,
    hint,
    passed,
    refused,
    translated,
)

AT_ANTHROPIC = "at a seat of the Anthropic API format"
AT_GOOGLE = "at a seat of Google's API format"

LEGACY: Mapping[str, Rule] = {
    "functions": translated("`tools`"),
    "function_call": translated("`tool_choice`"),
}
"""Fields that OpenAI's chat had before `tools`. They are translated before any other, except at OpenAI."""

HINTS: Mapping[str, Rule] = {
    "metadata": hint(),
    "store": hint(),
    "prediction": hint(),
    "service_tier": hint("auto", "default"),
    "verbosity": hint("medium"),
    "prompt_cache_key": hint(),
    "prompt_cache_options": hint(),
    "prompt_cache_retention": hint(),
    "safety_identifier": hint(),
    # not OpenAI's own
    "min_p": hint(0),
    "typical_p": hint(1),
    "repetition_penalty": hint(1),
    "repeat_penalty": hint(1),
    "reasoning": hint(),
    "include_reasoning": hint(True),
    "reasoning_format": hint(),
    "thinking_budget": hint(),
    "enable_thinking": hint(),
    "chat_template_kwargs": hint(),
    "provider": hint(),
    "transforms": hint(),
    "usage": hint({"include": True}, {"include": False}),
    "session_id": hint(),
    "chat_id": hint(),
    "options": hint(),
    "random_seed": hint(),
    "keep_alive": hint(),
    "cache_control": hint(),
}
"""Fields that say how an answer is made or kept, not what it contains."""

REFUSED: Mapping[str, Rule] = {
    "logprobs": refused(0),
    "top_logprobs": refused(0),
    "logit_bias": refused(),
    "audio": refused(),
    "modalities": refused(["text"], expected="text"),
    "web_search_options": always_refused(),  # an empty object asks for a search, too
    "moderation": refused(),
    "plugins": refused(),  # OpenRouter's, such as a search
}

CHAT_TO_MESSAGES = FieldTable(
    CHAT,
    "Anthropic",
    AT_ANTHROPIC,
    {
        **HINTS,
        **REFUSED,
        "model": passed(),
        "messages": translated("`messages`, `system`"),
        "max_tokens": translated("`max_tokens`"),
        "max_completion_tokens": translated("`max_tokens`"),
        "temperature": translated("at most 1; left out for models that take none"),
        "top_p": translated("left out for models that take none, and beside `temperature`"),
        "top_k": translated("left out for models that take none"),
        "stop": translated("`stop_sequences`"),
        "user": translated("`metadata.user_id`"),
        "safety_identifier": translated("`metadata.user_id` if there is no `user`"),
        "tools": translated("`tools`"),
        "tool_choice": translated("`tool_choice`"),
        "parallel_tool_calls": translated("`tool_choice`"),
        "response_format": translated("`output_config.format`, or words"),
        "reasoning_effort": translated("`thinking`, `output_config.effort`, as the model takes them"),
        "thinking": passed(),
        "cache_control": passed(),
        "stream": translated("set by the grid"),
        "stream_options": translated("set by the grid"),
        "n": refused(1, expected="1"),
        "seed": hint(),
        "presence_penalty": hint(0),
        "frequency_penalty": hint(0),
    },
)

CHAT_TO_GOOGLE = FieldTable(
    CHAT,
    "Google",
    AT_GOOGLE,
    {
        **HINTS,
        **REFUSED,
        "model": translated("in the URL"),
        "messages": translated("`contents`, `systemInstruction`"),
        "max_tokens": translated("`maxOutputTokens`"),
        "max_completion_tokens": translated("`maxOutputTokens`"),
        "temperature": passed("temperature"),
        "top_p": passed("topP"),
        "top_k": passed("topK"),
        "seed": passed("seed"),
        "n": translated("`candidateCount`"),
        "presence_penalty": passed("presencePenalty"),
        "frequency_penalty": passed("frequencyPenalty"),
        "stop": translated("`stopSequences`"),
        "tools": translated("`tools`"),
        "tool_choice": translated("`toolConfig`"),
        "parallel_tool_calls": translated("if false, the first call of an answer is kept"),
        "response_format": translated("`responseMimeType`, `responseJsonSchema`"),
        "reasoning_effort": translated("`thinkingConfig`"),
        "thinking": translated("`thinkingConfig`"),
        "stream": translated("set by the grid"),
        "stream_options": translated("set by the grid"),
        "user": hint(),
    },
)

EMBEDDINGS_TO_GOOGLE = FieldTable(
    EMBEDDINGS,
    "Google",
    AT_GOOGLE,
    {
        "model": translated("in the URL"),
        "input": translated("`content`, one for each text; tokens are refused"),
        "dimensions": translated("`outputDimensionality`"),
        "encoding_format": translated("set by the grid"),
        "user": hint(),
    },
)

AT_PROGRAM = "at a seat of a command-line program"

CHAT_TO_PROGRAM = FieldTable(
    CHAT,
    "programs",
    AT_PROGRAM,
    {
        **HINTS,
        **REFUSED,
        "model": translated("an argument of the program"),
        "messages": translated("the prompt; only text"),
        "response_format": translated("a schema, at programs that take one; else refused"),
        "stream": translated("set by the grid"),
        "stream_options": translated("set by the grid"),
        "n": refused(1, expected="1"),
        "stop": refused(),
        "tools": refused(),
        "tool_choice": refused("none", "auto"),
        **{name: refused("none", "auto") for name in LEGACY},
        "suffix": refused(),
        "echo": refused(),
        "best_of": refused(1),
        "temperature": hint(1),
        "top_p": hint(1),
        "top_k": hint(),
        "seed": hint(),
        "presence_penalty": hint(0),
        "frequency_penalty": hint(0),
        "max_tokens": hint(),
        "max_completion_tokens": hint(),
        "reasoning_effort": hint(),
        "thinking": hint(),
        "parallel_tool_calls": hint(True),
        "user": hint(),
    },
)

CHAT_TO_ENGINE = FieldTable(
    CHAT,
    "local",
    "at a seat with a local engine",
    {
        **HINTS,
        **REFUSED,
        "logprobs": passed(),
        "top_logprobs": passed(),
        "logit_bias": passed(),
        "model": translated("set by the grid"),
        "messages": passed(),
        "max_tokens": passed(),
        "max_completion_tokens": translated("`max_tokens`"),
        "temperature": passed(),
        "top_p": passed(),
        "seed": passed(),
        "presence_penalty": passed(),
        "frequency_penalty": passed(),
        "stop": passed(),
        "tools": passed(),
        "tool_choice": translated("auto or none; a forced call is refused"),
        "parallel_tool_calls": passed(),
        "response_format": passed(),
        "reasoning_effort": passed(),
        "stream": translated("set by the grid"),
        "stream_options": translated("set by the grid"),
        "n": refused(1, expected="1"),
        "user": hint(),
        # not OpenAI's own
        "min_p": passed(),
        "typical_p": passed(),
        "repeat_penalty": passed(),
        "chat_template_kwargs": passed(),
        "reasoning_format": passed(),
        "enable_thinking": passed(),
        "thinking": hint(),
    },
    refuses_unknown=False,
)

MESSAGE_HINTS: Mapping[str, Rule] = {"name": hint()}
"""The hints in a message."""

PICTURE_HINTS: Mapping[str, Rule] = {"detail": hint("auto")}
"""The hints in the `image_url` of a part."""


def drop_message_hints(messages: Json, drop: Drop) -> None:
    """Tell `drop` the hints in the messages of a chat, which no other format has."""
    for at, message in enumerate(messages):
        place, content = f"messages[{at}]", message.get("content")
        if message.get("role") != "tool":
            add_inner_hints(message, place, MESSAGE_HINTS, drop)
        for part_at, part in enumerate(content if isinstance(content, list) else ()):
            picture = part.get("image_url")
            if isinstance(picture, dict):
                add_inner_hints(picture, f"{place}.content[{part_at}].image_url", PICTURE_HINTS, drop)
