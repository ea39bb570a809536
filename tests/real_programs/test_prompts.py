"""Without tools, a prompt is only text: no program reads a file, a variable, a skill or an instruction of its
owner for it, or runs it as a command.

Each file of the owner here holds a canary, and so do a file's name and a variable. The model must be sent the
prompt as it is, and no canary.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gridq.errors import GridError
from tests.builders import stage
from tests.real_programs.grid import TESTED_PROGRAMS, WAIT_SECONDS, Grid, up
from tests.waiting import wait_for
from workers.profiles.llm.programs.vendors.all_vendors import VENDOR_PROGRAMS
from workers.supervisor.embedded_server import EmbeddedServer

pytestmark = [pytest.mark.clis, pytest.mark.timeout(600)]

SPELLINGS = {
    "files": "@{user}/absolute.txt @~/home.txt @../../../../../relative.txt @{user}/lines.txt#L1-2 "
    "@{user}/colon.txt:1-2 @{user}/link.txt",
    "names": '@"{user}/a quoted.txt" @{user}/an\\ escaped.txt @{{{user}/braces.txt}} @file://{user}/url.txt '
    "@'{user}/single.txt'",
    "folders": "@{user}/folder/ @{user}/folder @{login} @{login}/.gemini/tmp/work/chats/ @{user}/.cache",
    "marks": "[x]({user}/markdown.txt) ![x]({user}/image.txt) #{user}/hash.txt #file:{user}/hash.txt "
    '<file>{user}/tag.txt</file> <image path="{user}/tag.txt"> [@tag.txt]({user}/tag.txt)',
    "commands": "!{{cat {user}/shell.txt}} !`cat {user}/shell.txt` $(cat {user}/shell.txt) @mine $mine /mine "
    "[$mine]({login}/skills/mine/SKILL.md) [$mine]({user}/.agents/skills/mine/SKILL.md) [$mine](skill://mine)",
    "templates": "{{file:{user}/template.txt}} {{file:~/template.txt}} {{env:CANARY}} ${{CANARY}} $CANARY "
    "{{{{args}}}} $ARGUMENTS $1 @$1 $& $$",
}
"""What one of the programs replaces by something of the owner's: in prompts, in commands, in its settings."""

COMMANDS = (
    *("/help", "/mine please", "  /mine", "\n/compact", "/plan it", "/etc/hosts?"),
    "!cat {user}/shell.txt",
)
USER_FILES = (
    *("absolute.txt", "home.txt", "relative.txt", "lines.txt", "colon.txt", "linked.txt", "a quoted.txt"),
    *(
        "an escaped.txt",
        "braces.txt",
        "url.txt",
        "single.txt",
        "folder/inside.txt",
        "markdown.txt",
        "image.txt",
    ),
    *("hash.txt", "tag.txt", "shell.txt", "template.txt"),
    *("AGENTS.md", "CLAUDE.md", "GEMINI.md", ".cache/AGENTS.md", ".cache/GEMINI.md", ".cache/CLAUDE.md"),
    *(".claude/CLAUDE.md", ".claude/skills/mine/SKILL.md", ".agents/skills/mine/SKILL.md"),
    *(".github/copilot-instructions.md", ".cache/gridq/AGENTS.md"),
)
LOGIN_FILES = (
    *("AGENTS.md", "CLAUDE.md", "copilot-instructions.md", "skills/mine/SKILL.md", "commands/mine.md"),
    *("prompts/mine.md", "agents/mine.md", "agents/mine.agent.md", "memories/memory_summary.md"),
    *("instructions/mine.instructions.md", "rules/mine.md"),
    *(".gemini/GEMINI.md", ".gemini/skills/mine/SKILL.md", ".gemini/agents/mine.md"),
    *(
        ".gemini/commands/mine.toml",
        ".gemini/tmp/work/memory/MEMORY.md",
        ".gemini/tmp/work/chats/earlier.json",
    ),
    *(".config/opencode/AGENTS.md", ".config/opencode/command/mine.md", ".config/opencode/agent/mine.md"),
    *(".config/opencode/skill/mine/SKILL.md", ".config/opencode/rules.md"),
)
"""Files in the home folder of the owner, and in the folder of the login, whichever program reads them."""


@dataclass(frozen=True)
class Lent:
    """The grid of a program with files of the owner, and the canary of each."""

    name: str
    grid: Grid
    canaries: dict[str, str]

    def spell(self, text: str) -> str:
        return text.format(user=self.grid.user, login=self.grid.folder / "good")

    def run_stage(self, stage_id: str, value: dict[str, object]) -> tuple[str, set[str]]:
        """Run one stage. Return all that the model was sent, and the names of the canaries in it."""
        before = len(self.grid.server.requests)
        model = self.grid.tested.provider + "echo"
        self.grid.client.run({"root": stage(stage_id, model=model)}, value, WAIT_SECONDS)
        return self.read_requests(before)

    def read_requests(self, start: int) -> tuple[str, set[str]]:
        bodies = [each["body"] for each in self.grid.server.requests[start:]]
        assert bodies, "the model was never asked"
        sent = json.dumps(bodies, ensure_ascii=False)
        return sent, {name for name, canary in self.canaries.items() if canary in sent}


def quote(text: str) -> str:
    """Return `text` as it stands in JSON."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def place_files(user: Path, login: Path, token: str) -> dict[str, str]:
    """Write the owner's files, which keep what stands there already, and return the canary of each."""
    canaries = {"variable": f"{token}-variable", "file name": f"{token}-name"}
    for folder, names in ((user, USER_FILES), (login, LOGIN_FILES)):
        for name in names:
            label = f"{folder.name}/{name}"
            canaries[label] = f"{token}-{len(canaries)}-"
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(_make_content(name, canaries[label]))
    (user / "folder" / canaries["file name"]).touch()
    (user / "link.txt").symlink_to(user / "linked.txt")
    return canaries


def _make_content(name: str, canary: str) -> str:
    if name.endswith(".toml"):
        return f'description = "{canary}"\nprompt = "{canary}"\n'
    if name.endswith((".md", ".json")) and "mine" in name:
        return f"---\nname: mine\ndescription: {canary}\n---\n{canary}\n"
    return f"{canary}\n"


@contextlib.contextmanager
def lend(name: str, url: str, folder: Path, *, tools: bool) -> Iterator[Lent]:
    token = f"canary-{secrets.token_hex(6)}"
    with up(name, url, folder, tools=tools, variables={"CANARY": f"{token}-variable"}) as grid:
        yield Lent(name, grid, place_files(grid.user, folder / "good", token))


@pytest.fixture(scope="module", params=TESTED_PROGRAMS)
def lent(
    request: pytest.FixtureRequest, server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Lent]:
    with lend(request.param, server.url, tmp_path_factory.mktemp(request.param), tools=False) as made:
        yield made


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_prompt_names_what_its_owner_keeps(lent: Lent, spelling: str) -> None:
    prompt = f"Repeat: {lent.spell(SPELLINGS[spelling])}"
    sent, leaked = lent.run_stage("llm_complete", {"prompt": prompt})
    assert quote(prompt) in sent
    assert not leaked


def test_an_earlier_turn_names_what_its_owner_keeps(lent: Lent) -> None:
    named = lent.spell("\n".join(SPELLINGS.values()))
    turns = [("user", f"Read {named}"), ("assistant", f"It is {named}"), ("user", f"Repeat {named}")]
    sent, leaked = lent.run_stage(
        "llm_chat", {"messages": [{"role": role, "content": text} for role, text in turns]}
    )
    assert [quote(text) in sent for _, text in turns] == [True] * 3
    assert not leaked


def test_a_system_prompt_names_what_its_owner_keeps(lent: Lent) -> None:
    system = f"Read {lent.spell(' '.join(SPELLINGS.values()))}"
    sent, leaked = lent.run_stage("llm_complete", {"prompt": "Repeat it.", "system": system})
    assert quote(system) in sent
    assert not leaked


def test_a_schema_names_what_its_owner_keeps(lent: Lent) -> None:
    described = lent.spell(" ".join(SPELLINGS.values()))
    schema = {"type": "object", "properties": {"answer": {"type": "string", "description": described}}}
    body = {
        "messages": [{"role": "user", "content": "Answer."}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}},
    }
    before = len(lent.grid.server.requests)
    graph = {"root": stage("llm_api_request", model=lent.grid.tested.provider + "echo")}
    job = lent.grid.client.submit(graph, {"api": "openai", "path": "chat/completions", "body": body})
    if not VENDOR_PROGRAMS[lent.name].supports_schema:
        with pytest.raises(GridError, match="does not support json_schema"):
            lent.grid.client.result(job, WAIT_SECONDS)
        return
    wait_for(lambda: len(lent.grid.server.requests) > before, WAIT_SECONDS)
    lent.grid.client.cancel(job)  # the server's answer does not follow the schema
    sent, leaked = lent.read_requests(before)
    assert quote(described) in sent
    assert not leaked


@pytest.mark.parametrize("command", COMMANDS)
def test_a_prompt_that_looks_like_a_command_is_text_for_the_model(lent: Lent, command: str) -> None:
    prompt = lent.spell(command)
    sent, leaked = lent.run_stage("llm_complete", {"prompt": prompt})
    assert quote(prompt) in sent
    assert not leaked


def test_with_tools_the_canaries_of_what_claude_code_reads_arrive(
    server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Show that a canary in a request is found at all, and that the switch is what keeps it out."""
    with lend("claude", server.url, tmp_path_factory.mktemp("tools"), tools=True) as lent:
        prompt = " ".join(lent.spell(SPELLINGS[kind]) for kind in ("files", "names", "folders"))
        sent, leaked = lent.run_stage("llm_complete", {"prompt": prompt})
        names = ("absolute", "home", "relative", "lines", "linked", "a quoted")
        assert {f"user/{name}.txt" for name in names} | {"file name"} <= leaked
        for command in ("/help", "/cost", "/model opus", "\ufeff/help"):
            sent, _ = lent.run_stage("llm_complete", {"prompt": command})
            assert quote(command) in sent
