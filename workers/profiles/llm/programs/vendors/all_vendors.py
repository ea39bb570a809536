"""The programs that gridq knows, by the name that an `[[llm]]` table gives as `cli`."""

from __future__ import annotations

from collections.abc import Mapping

from workers.profiles.llm.programs.vendor import Provider
from workers.profiles.llm.programs.vendors.claude import CLAUDE
from workers.profiles.llm.programs.vendors.codex import CODEX
from workers.profiles.llm.programs.vendors.copilot import COPILOT
from workers.profiles.llm.programs.vendors.cursor import CURSOR
from workers.profiles.llm.programs.vendors.gemini import GEMINI
from workers.profiles.llm.programs.vendors.opencode import OPENCODE

PROVIDERS: Mapping[str, Provider] = {
    each.name: each for each in (CLAUDE, CODEX, COPILOT, CURSOR, GEMINI, OPENCODE)
}
