"""A chat request as what a vendor's program takes: one prompt, and a system prompt where it has a way for it.

A program is an agent behind a prompt, not a model API. What it cannot do and what would change the answer is
refused by name; hints (sampling, the length of an answer) have no place in it and are left out, as the
documents say.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gridq.errors import StageError
from gridq.protocol.models import Json
from workers.model_apis.api_request import CHAT, make_field_error
from workers.profiles.llm.programs.vendor import VendorProgram

IGNORED_FIELDS = frozenset(
    {
        *("temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty"),
        *("repetition_penalty", "max_tokens", "max_completion_tokens", "reasoning_effort", "verbosity"),
        *("user", "metadata", "store", "service_tier", "prompt_cache_key", "safety_identifier"),
        *("parallel_tool_calls", "thinking", "reasoning", "options", "keep_alive"),
    }
)
"""Fields that say how an answer is made, not what it is: left out."""

TRANSLATED_FIELDS = frozenset(
    {
        *("messages", "model", "stream", "stream_options", "n"),
        *("tools", "tool_choice", "response_format"),
    }
)
NEUTRAL_VALUES: Mapping[str, tuple[Json, ...]] = {
    "stop": ("", []),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "logit_bias": ({},),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "suffix": ("",),
    "echo": (False,),
    "best_of": (1,),
}
"""Fields that are refused unless they ask for nothing: their values that do."""

MAX_SCHEMA_CHARACTERS = 100_000
"""Characters: it may have to go as one argument, of which the system takes 128 KB."""

DEFAULT_SYSTEM = "Answer the request itself. You have no tools and no files; nobody can be asked back."
"""Stands in place of the program's own instructions, which are those of a coding agent."""


@dataclass(frozen=True)
class Prompt:
    """What goes to the program: its stdin, its system prompt ("": none), its answer's schema (None: none)."""

    text: str
    system: str
    schema: Json = None


def build_prompt(provider: VendorProgram, path: str, body: dict[str, Json], *, tools: bool) -> Prompt:
    """The prompt for a chat request. StageError names the field that the program cannot do."""
    if path != CHAT:
        raise make_field_error("path", f"{CHAT}: {provider.title} has no {path}", "ask a seat at a model API's endpoint")
    schema = _checked(provider, body)
    system, messages = _split(provider, body["messages"])
    text = messages[0][1]
    if [role for role, _ in messages] != ["user"] or _is_command(provider, text):
        text = "\n\n".join(_transcript(messages))
    if not text.strip():
        raise make_field_error("messages", "a text: a program cannot be asked nothing")
    if not provider.system:
        parts = [f"<instructions>\n{system}\n</instructions>", text] if system else [text]
        return Prompt("\n\n".join(parts), "", schema)
    return Prompt(text, system or ("" if tools else DEFAULT_SYSTEM), schema)


def _checked(provider: VendorProgram, body: dict[str, Json]) -> Json:
    """The schema that the answer must have, or None; refused is what the program cannot do."""
    title = provider.title
    for field, value in body.items():
        if value is None or field in IGNORED_FIELDS or field in TRANSLATED_FIELDS:
            continue
        if value not in NEUTRAL_VALUES.get(field, ()):
            raise _cannot(field, title, "nothing (nor stop_sequences)" if field == "stop" else "nothing")
    if body.get("n", 1) != 1:
        raise _cannot("n", title, "1")
    if body.get("tools"):
        raise _cannot("tools", title, "no tools")
    if body.get("tool_choice") not in (None, "none", "auto"):
        raise _cannot("tool_choice", title)
    wanted = body.get("response_format")
    match wanted.get("type") if isinstance(wanted, dict) else None:
        case None | "text":
            return None
        case "json_schema" if provider.schema:
            told = wanted.get("json_schema") if isinstance(wanted, dict) else None
            schema = told.get("schema") if isinstance(told, dict) else None
            if not isinstance(schema, dict):
                raise make_field_error("response_format.json_schema.schema", "an object")
            if len(json.dumps(schema)) > MAX_SCHEMA_CHARACTERS:
                raise make_field_error("response_format.json_schema.schema", f"at most {MAX_SCHEMA_CHARACTERS} characters")
            return schema
        case kind:
            fix = "ask in the prompt for JSON, or a seat at a model API's endpoint"
            expected = "text or json_schema" if provider.schema else "text"
            raise make_field_error("response_format", f"{expected}: {title} has no way to {kind}", fix)


def _cannot(field: str, title: str, expected: str = "nothing") -> StageError:
    return make_field_error(
        field,
        f"{expected}: {title} is a program at the command line and has no way for it",
        "leave it out, or name a model that a seat at a model API's endpoint serves",
    )


def _split(provider: VendorProgram, told: list[dict[str, Json]]) -> tuple[str, list[tuple[str, str]]]:
    """The system prompt at the head, and the messages after it: role and text."""
    systems: list[str] = []
    messages: list[tuple[str, str]] = []
    for at, message in enumerate(told):
        role, place = message.get("role"), f"messages[{at}]"
        if message.get("tool_calls") or message.get("function_call") or role in ("tool", "function"):
            raise _cannot(
                f"{place}.{'role' if role in ('tool', 'function') else 'tool_calls'}", provider.title
            )
        text = _text(message.get("content"), f"{place}.content", provider.title)
        if role in ("system", "developer"):
            if messages:
                messages.append(("system", text))
            else:
                systems.append(text)
        elif role in ("user", "assistant"):
            messages.append((role, text))
        else:
            raise make_field_error(f"{place}.role", "system, developer, user or assistant")
    if not messages or messages[-1][0] != "user":
        raise make_field_error(
            "messages", "a last message of the user: a program cannot go on with an answer", "add one"
        )
    return "\n\n".join(filter(None, systems)), messages


def _text(content: Json, place: str, title: str) -> str:
    if isinstance(content, str) or content is None:
        return content or ""
    if not isinstance(content, list):
        raise make_field_error(place, "a text or a list of text parts")
    for at, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text" or not isinstance(part.get("text"), str):
            raise make_field_error(
                f"{place}[{at}]", f"text: {title} is not given {kind or 'this'} parts", "leave it out"
            )
    return "\n\n".join(part["text"] for part in content)


def _is_command(provider: VendorProgram, text: str) -> bool:
    """Whether the program would take `text` as a command to itself. Within a conversation it is plain text,
    however much of a prompt's head the program cuts off before it looks.
    """
    return provider.commands is not None and provider.commands.match(text) is not None


def _transcript(messages: list[tuple[str, str]]) -> Iterator[str]:
    """A conversation as one text."""
    yield "This is a conversation so far. Answer its last message, as the assistant, with the answer alone."
    for role, text in messages:
        yield f'<message role="{role}">\n{text}\n</message>'
