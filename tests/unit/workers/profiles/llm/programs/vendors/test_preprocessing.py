"""Prompts that Claude Code would interpret as commands or file names."""

from __future__ import annotations

import pytest

from tests.fakes.programs import FakePrograms
from tests.program_seats import ask, seat
from workers.profiles.llm.programs.prompts import build_prompt
from workers.profiles.llm.programs.vendor import VendorProgram
from workers.profiles.llm.programs.vendors.claude import CLAUDE
from workers.profiles.llm.programs.vendors.codex import CODEX
from workers.profiles.llm.programs.vendors.copilot import COPILOT
from workers.profiles.llm.programs.vendors.cursor import CURSOR
from workers.profiles.llm.programs.vendors.gemini import GEMINI

SWITCHES = {"CLAUDE_CODE_DISABLE_FILE_MENTIONS", "CLAUDE_CODE_DISABLE_ATTACHMENTS"}


def text_of(prompt: str, program: VendorProgram = CLAUDE, *, tools: bool = False) -> str:
    body = {"model": "m", "messages": [{"role": "user", "content": prompt}]}
    return build_prompt(program, "chat/completions", body, allows_tools=tools).text


@pytest.mark.usefixtures("on_path")
def test_without_tools_files_named_in_a_prompt_are_not_read(fakes: FakePrograms) -> None:
    ask(seat("claude"), "claude", "echo")
    environ = fakes.calls("claude")[-1]["env"]
    assert {environ.get(name) for name in SWITCHES} == {"1"}


@pytest.mark.usefixtures("on_path")
def test_a_table_variable_does_not_reenable_file_reading(
    fakes: FakePrograms, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in SWITCHES:
        monkeypatch.setenv(name, "0")
    ask(seat("claude", env=sorted(SWITCHES)), "claude", "echo")
    environ = fakes.calls("claude")[-1]["env"]
    assert {environ.get(name) for name in SWITCHES} == {"1"}


@pytest.mark.usefixtures("on_path")
def test_with_tools_file_reading_stays_enabled(fakes: FakePrograms) -> None:
    ask(seat("claude", tools=True), "claude", "echo")
    assert not SWITCHES & set(fakes.calls("claude")[-1]["env"])


@pytest.mark.parametrize("tools", [False, True])
@pytest.mark.parametrize("program", [CLAUDE, COPILOT, CURSOR, GEMINI], ids=lambda program: program.name)
@pytest.mark.parametrize(
    "prompt", ["/help", "/", " /help", "\n\t/help", "\ufeff/help", "\u200b \x00/help", "/etc/hosts is a file"]
)
def test_a_prompt_that_begins_with_a_slash_is_wrapped_in_a_conversation(
    prompt: str, program: VendorProgram, tools: bool
) -> None:
    text = text_of(prompt, program, tools=tools)
    assert text.endswith(f'\n\n<message role="user">\n{prompt}\n</message>')
    assert text.startswith("This is a conversation")


@pytest.mark.parametrize(
    "prompt", ["so it goes", "either/or", "1/2", "é/", "(/help)", "- /help", "@/etc/hosts"]
)
def test_other_prompts_are_sent_unchanged(prompt: str) -> None:
    assert text_of(prompt) == prompt


def test_a_program_without_slash_commands_gets_the_prompt_unchanged() -> None:
    assert text_of("/help", CODEX) == "/help"
