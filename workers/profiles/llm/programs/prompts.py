"""Translate a chat request to the prompt of a vendor's program, and a system prompt if it supports one.

A program is an agent behind a prompt, not a model API. The table of fields is
`workers.model_apis.fields.chat.CHAT_TO_PROGRAM`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from gridq.errors import StageError
from gridq.protocol.models import Json
from workers.model_apis.api_request import CHAT, make_field_error
from workers.model_apis.fields.chat import CHAT_TO_PROGRAM
from workers.model_apis.fields.table import Drop, ignore
from workers.profiles.llm.programs.vendor import VendorProgram

MAX_SCHEMA_CHARACTERS = 100_000
"""A schema may have to be one argument, for which the system's limit is 128 KB."""

DEFAULT_SYSTEM = "Answer the request itself. You have no tools and no files; nobody can be asked back."
"""Replaces the program's own instructions, which are those of a coding agent."""


@dataclass(frozen=True)
class Prompt:
    """The input of a program: its stdin, its system prompt or "", and the schema of the answer or None."""

    text: str
    system: str
    schema: Json = None


def build_prompt(
    program: VendorProgram, path: str, body: dict[str, Json], *, allows_tools: bool, drop: Drop = ignore
) -> Prompt:
    """Return the prompt for a chat request. `drop` is told what is left out.

    Raises StageError naming an unsupported field.
    """
    if path != CHAT:
        raise make_field_error(
            "path", f"{CHAT}: {program.title} has no {path}", "name a model of a seat at an endpoint"
        )
    _, stated = CHAT_TO_PROGRAM.split(body, drop)
    schema = _read_schema(program, stated.get("response_format"))
    system, messages = _split_messages(program, stated["messages"])
    text = messages[0][1]
    if [role for role, _ in messages] != ["user"] or _is_command(program, text):
        text = "\n\n".join(_format_conversation(messages))
    if not text.strip():
        raise make_field_error("messages", "text: a program needs a prompt")
    if not program.supports_system:
        parts = [f"<instructions>\n{system}\n</instructions>", text] if system else [text]
        return Prompt("\n\n".join(parts), "", schema)
    return Prompt(text, system or ("" if allows_tools else DEFAULT_SYSTEM), schema)


def _read_schema(program: VendorProgram, response_format: Json) -> Json:
    """Return the schema of the answer, or None."""
    match response_format.get("type") if isinstance(response_format, dict) else None:
        case None | "text":
            return None
        case "json_schema" if program.supports_schema:
            json_schema = response_format.get("json_schema") if isinstance(response_format, dict) else None
            schema = json_schema.get("schema") if isinstance(json_schema, dict) else None
            if not isinstance(schema, dict):
                raise make_field_error("response_format.json_schema.schema", "an object")
            if len(json.dumps(schema)) > MAX_SCHEMA_CHARACTERS:
                raise make_field_error(
                    "response_format.json_schema.schema", f"at most {MAX_SCHEMA_CHARACTERS} characters"
                )
            return schema
        case kind:
            fix = "ask for JSON in the prompt, or name a model of a seat at an endpoint"
            expected = "text or json_schema" if program.supports_schema else "text"
            raise make_field_error(
                "response_format", f"{expected}: {program.title} does not support {kind}", fix
            )


def _make_unsupported_error(field: str, title: str, expected: str = "absent") -> StageError:
    return make_field_error(
        field,
        f"{expected}: {title} is a command-line program and does not support it",
        "remove it, or name a model of a seat at an endpoint",
    )


def _split_messages(
    program: VendorProgram, conversation: list[dict[str, Json]]
) -> tuple[str, list[tuple[str, str]]]:
    """Return the leading system prompt, and the role and text of each message after it."""
    systems: list[str] = []
    messages: list[tuple[str, str]] = []
    for at, message in enumerate(conversation):
        role, place = message.get("role"), f"messages[{at}]"
        if message.get("tool_calls") or message.get("function_call") or role in ("tool", "function"):
            raise _make_unsupported_error(
                f"{place}.{'role' if role in ('tool', 'function') else 'tool_calls'}", program.title
            )
        text = _join_text(message.get("content"), f"{place}.content", program.title)
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
            "messages", "a user message at the end: a program cannot continue an answer", "add one"
        )
    return "\n\n".join(filter(None, systems)), messages


def _join_text(content: Json, place: str, title: str) -> str:
    if isinstance(content, str) or content is None:
        return content or ""
    if not isinstance(content, list):
        raise make_field_error(place, "a string or a list of text parts")
    for at, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text" or not isinstance(part.get("text"), str):
            raise make_field_error(
                f"{place}[{at}]", f"text: {title} does not take {kind or 'such'} parts", "remove it"
            )
    return "\n\n".join(part["text"] for part in content)


def _is_command(program: VendorProgram, text: str) -> bool:
    """Return whether the program would run `text` as a command. Within a conversation it is plain text."""
    return program.commands is not None and program.commands.match(text) is not None


def _format_conversation(messages: list[tuple[str, str]]) -> Iterator[str]:
    """Yield the parts of one prompt for a whole conversation."""
    yield "This is a conversation so far. Answer its last message, as the assistant, with the answer alone."
    for role, text in messages:
        yield f'<message role="{role}">\n{text}\n</message>'
