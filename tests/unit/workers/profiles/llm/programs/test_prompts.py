"""Chat requests as prompts of programs, and the fields that are rejected by name."""

from __future__ import annotations

from typing import Any

import pytest

from gridq.errors import StageError
from workers.profiles.llm.programs.prompts import DEFAULT_SYSTEM, Prompt, build_prompt
from workers.profiles.llm.programs.vendor import VendorProgram
from workers.profiles.llm.programs.vendors.all_vendors import VENDOR_PROGRAMS
from workers.profiles.llm.programs.vendors.claude import CLAUDE
from workers.profiles.llm.programs.vendors.copilot import COPILOT

USER = {"role": "user", "content": "so it goes"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
WANTED = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}


def prompt(program: VendorProgram = CLAUDE, *, tools: bool = False, **body: Any) -> Prompt:
    body = {"model": "m", "messages": [USER], **body}
    return build_prompt(program, "chat/completions", body, allows_tools=tools)


def test_a_single_message_is_the_prompt_unchanged():
    assert prompt() == Prompt("so it goes", DEFAULT_SYSTEM)


def test_a_system_prompt_uses_the_programs_own_option():
    system = [{"role": "system", "content": "Be brief."}, {"role": "developer", "content": "In French."}]
    assert prompt(messages=[*system, USER]) == Prompt("so it goes", "Be brief.\n\nIn French.")
    prepended = prompt(COPILOT, messages=[*system, USER])
    assert prepended.system == ""
    assert prepended.text == "<instructions>\nBe brief.\n\nIn French.\n</instructions>\n\nso it goes"
    assert prompt(COPILOT).text == "so it goes"


def test_a_program_with_its_tools_keeps_its_own_instructions():
    assert prompt(tools=True).system == ""


def test_a_conversation_is_one_prompt():
    messages = [USER, {"role": "assistant", "content": "on"}, {"role": "user", "content": "and on"}]
    text = prompt(messages=messages).text
    assert text.index('role="user">\nso it goes') < text.index('role="assistant">\non') < text.index("and on")
    assert "Answer its last message" in text


def test_text_parts_are_joined():
    parts = [{"type": "text", "text": "so"}, {"type": "text", "text": "it goes"}]
    assert prompt(messages=[{"role": "user", "content": parts}]).text == "so\n\nit goes"


def test_hints_are_left_out():
    hints = {"temperature": 0.2, "top_p": 0.5, "max_tokens": 5, "max_completion_tokens": 5, "seed": 1}
    more = {"user": "me", "n": 1, "stop": None, "functions": [], "tool_choice": "auto", "logprobs": False}
    assert prompt(**hints, **more, response_format={"type": "text"}) == prompt()
    dropped: list[str] = []
    body = {"model": "m", "messages": [USER], **hints, **more}
    for program in VENDOR_PROGRAMS.values():
        dropped.clear()
        build_prompt(program, "chat/completions", body, allows_tools=False, drop=dropped.append)
        assert dropped == [*hints, "user"]


def test_a_schema_uses_the_programs_own_option():
    assert prompt(response_format=WANTED).schema == SCHEMA


@pytest.mark.parametrize("program", VENDOR_PROGRAMS.values(), ids=list(VENDOR_PROGRAMS))
@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"stop": ["."]}, "stop"),
        ({"n": 2}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"vendor_thing": 1}, "vendor_thing"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
        ({"messages": [USER, {"role": "tool", "content": "x"}]}, "messages[1].role"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "x"}]}, USER]}, "messages[0].tool_calls"),
        ({"messages": [USER, {"role": "assistant", "content": "It"}]}, "messages"),
        ({"messages": [{"role": "user", "content": "  "}]}, "messages"),
        ({"messages": [{"role": "critic", "content": "no"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ],
)
def test_unsupported_fields_are_rejected_by_name(program: VendorProgram, body: dict[str, Any], field: str):
    with pytest.raises(StageError) as caught:
        build_prompt(
            program, "chat/completions", {"model": "m", "messages": [USER], **body}, allows_tools=False
        )
    assert caught.value.details["param"] == field
    assert caught.value.details["status"] == 400


@pytest.mark.parametrize("program", VENDOR_PROGRAMS.values(), ids=list(VENDOR_PROGRAMS))
@pytest.mark.parametrize("path", ["completions", "embeddings"])
def test_other_paths_are_refused(program: VendorProgram, path: str):
    with pytest.raises(StageError, match="path"):
        build_prompt(program, path, {"model": "m", "prompt": "so"}, allows_tools=False)


def test_a_schema_is_refused_without_such_an_option():
    for program in VENDOR_PROGRAMS.values():
        if not program.supports_schema:
            with pytest.raises(StageError) as caught:
                prompt(program, response_format=WANTED)
            assert caught.value.details["param"] == "response_format"
