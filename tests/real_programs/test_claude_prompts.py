"""Keep Claude Code from reading files that a prompt names as `@path`, and from running a prompt as a command.

Each file here holds a canary, which must reach the model only if the owner of the seat allows tools.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.builders import stage
from tests.real_programs.grid import Grid, up
from workers.supervisor.embedded_server import EmbeddedServer

pytestmark = [pytest.mark.clis, pytest.mark.timeout(600)]

SPELLINGS = {
    "absolute": "@{cache}/canary.txt",
    "home": "@~/{below}/canary.txt",
    "relative": "@../../../../canary.txt",
    "directory": "@{cache}/folder/",
    "quoted": '@"{cache}/a canary.txt"',
    "lines": "@{cache}/canary.txt#L1-2",
}


@dataclass(frozen=True)
class Lent:
    """A grid, whether its owner allows tools, and the content of the owner's files."""

    grid: Grid
    tools: bool
    canary: str

    def spelled(self, spelling: str) -> str:
        cache = self.grid.cache
        return SPELLINGS[spelling].format(cache=cache, below=cache.relative_to(Path.home()))

    def run_stage(self, stage_id: str, value: dict[str, object]) -> str:
        """Run one stage and return everything that the model was sent."""
        before = len(self.grid.server.requests)
        self.grid.client.run({"root": stage(stage_id, model="echo")}, value, 60)
        bodies = [each["body"] for each in self.grid.server.requests[before:]]
        assert bodies, "the model was never asked"
        return json.dumps(bodies, ensure_ascii=False)


@pytest.fixture(scope="module", params=[False, True], ids=["no tools", "tools"])
def lent(
    request: pytest.FixtureRequest, server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Lent]:
    with up("claude", server.url, tmp_path_factory.mktemp("claude"), tools=request.param) as grid:
        canary = f"canary-{secrets.token_hex(8)}"
        for name in ("canary.txt", "a canary.txt", f"folder/{canary}"):
            path = grid.cache / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"{canary}\n")
        yield Lent(grid, request.param, canary)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_file_that_a_prompt_names_stays_with_its_owner(lent: Lent, spelling: str) -> None:
    named = lent.spelled(spelling)
    sent = lent.run_stage("llm_complete", {"prompt": f"Repeat: {named}"})
    assert json.dumps(f"Repeat: {named}")[1:-1] in sent
    assert (lent.canary in sent) is lent.tools


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_file_that_an_earlier_turn_names_stays_with_its_owner(lent: Lent, spelling: str) -> None:
    named = lent.spelled(spelling)
    messages = [
        {"role": "user", "content": f"Read {named}"},
        {"role": "assistant", "content": f"It is {named}"},
        {"role": "user", "content": "Repeat it."},
    ]
    sent = lent.run_stage("llm_chat", {"messages": messages})
    assert json.dumps(f"Read {named}")[1:-1] in sent
    assert (lent.canary in sent) is lent.tools


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_file_that_a_system_prompt_names_stays_with_its_owner(lent: Lent, spelling: str) -> None:
    named = lent.spelled(spelling)
    sent = lent.run_stage("llm_complete", {"prompt": "Repeat it.", "system": f"Read {named}"})
    assert json.dumps(f"Read {named}")[1:-1] in sent
    assert lent.canary not in sent


@pytest.mark.parametrize(
    "prompt",
    ["/help", "/cost", "/model opus", "/compact", "  /help", "\n/help", "\ufeff/help", "/etc/hosts?"],
)
def test_a_prompt_that_begins_with_a_slash_is_text_for_the_model(lent: Lent, prompt: str) -> None:
    assert json.dumps(prompt, ensure_ascii=False)[1:-1] in lent.run_stage("llm_complete", {"prompt": prompt})
