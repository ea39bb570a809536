"""Read the pages of docs/how-to/agent/clients: a test runs what a page says, so that it cannot go stale."""

from __future__ import annotations

import re
import shlex

from tests.compatibility.results import ROOT
from tests.compatibility.seats import Seat

PAGES = ROOT / "docs" / "how-to" / "agent" / "clients"
URL, KEY = "http://127.0.0.1:8080", "none"
"""What pages write for the address and the key of a reader's grid."""

MODEL, SMALL_MODEL = "qwen3-coder-30b", "qwen3-4b"
"""What pages write for the models of a reader's grid."""

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
VARIABLE = re.compile(r'^export (\w+)="(.*)"$', re.MULTILINE)


def read_blocks(page: str, language: str, seat: Seat) -> list[str]:
    """Return the blocks of a language on a page, with the address and the key of a seat's grid."""
    whole = (PAGES / f"{page}.md").read_text("utf-8")
    blocks = [text for found, text in BLOCK.findall(whole) if found == language]
    assert blocks, f"{page}.md has no block of {language}"
    return [fit(text, seat) for text in blocks]


def fit(text: str, seat: Seat) -> str:
    """Return `text` with the address and the key of a seat's grid, which stand alone or between quotes."""
    for name, value in ((URL, seat.url), (KEY, seat.key)):
        text = re.sub(rf'(?<=["/ =]){re.escape(name)}(?=["/\s]|$)', value, text)
    return text


def read_aliases() -> str:
    """Return a quotas file in which the models of the pages stand for `{model}`, a seat's one."""
    page = (PAGES / "claude-code.md").read_text("utf-8")
    (names,) = [text for language, text in BLOCK.findall(page) if language == "toml"]
    own = "".join(f'"{name}" = "llm:{{model}}"\n' for name in (MODEL, SMALL_MODEL))
    return str(re.sub(r"llm:[\w.-]+", "llm:{model}", names)) + own


def read_variables(page: str, seat: Seat) -> dict[str, str]:
    """Return the variables that the commands of a page export."""
    return dict(VARIABLE.findall("\n".join(read_blocks(page, "bash", seat))))


def read_command(page: str, name: str, seat: Seat) -> list[str]:
    """Return the words of the first command of a page that begins with `name`, such as `cline auth`."""
    lines = "\n".join(read_blocks(page, "bash", seat)).splitlines()
    return shlex.split(next(line for line in lines if line.startswith(name)))
