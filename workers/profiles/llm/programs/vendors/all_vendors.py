"""The programs that gridq supports, by their names in the `cli` field of an `[[llm]]` table."""

from __future__ import annotations

from collections.abc import Mapping

from workers.profiles.llm.programs.vendor import VendorProgram
from workers.profiles.llm.programs.vendors.claude import CLAUDE
from workers.profiles.llm.programs.vendors.codex import CODEX
from workers.profiles.llm.programs.vendors.copilot import COPILOT
from workers.profiles.llm.programs.vendors.cursor import CURSOR
from workers.profiles.llm.programs.vendors.gemini import GEMINI
from workers.profiles.llm.programs.vendors.opencode import OPENCODE

VENDOR_PROGRAMS: Mapping[str, VendorProgram] = {
    each.name: each for each in (CLAUDE, CODEX, COPILOT, CURSOR, GEMINI, OPENCODE)
}
