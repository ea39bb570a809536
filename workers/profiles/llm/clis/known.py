"""The programs that gridq knows, by the name that an `[[llm]]` table gives as `cli`."""

from __future__ import annotations

from collections.abc import Mapping

from workers.profiles.llm.clis.claude import CLAUDE
from workers.profiles.llm.clis.codex import CODEX
from workers.profiles.llm.clis.copilot import COPILOT
from workers.profiles.llm.clis.cursor import CURSOR
from workers.profiles.llm.clis.gemini import GEMINI
from workers.profiles.llm.clis.opencode import OPENCODE
from workers.profiles.llm.clis.provider import Provider

PROVIDERS: Mapping[str, Provider] = {
    each.name: each for each in (CLAUDE, CODEX, COPILOT, CURSOR, GEMINI, OPENCODE)
}
