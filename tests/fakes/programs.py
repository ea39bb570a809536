"""Vendors' programs that are not theirs, on a PATH of their own; see `fixtures/clis/fake.py`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

FAKE = Path(__file__).parents[1] / "fixtures" / "clis" / "fake.py"
PROGRAMS = {
    "claude": "claude",
    "codex": "codex",
    "copilot": "copilot",
    "cursor": "cursor-agent",
    "gemini": "gemini",
    "opencode": "opencode",
}


class FakePrograms:
    """Fakes in a folder: `environ` is an environment that finds only them."""

    def __init__(self, folder: Path, *clis: str) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        for cli in clis:
            self.install(cli)
        self.environ = {
            "PATH": f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin",
            "HOME": str(folder),
            "SECRET_THING": "never",
        }

    def install(self, cli: str, text: str | None = None) -> Path:
        """Put a fake there, or a program of one's own."""
        path = self.folder / PROGRAMS[cli]
        body = FAKE.read_text("utf-8") if text is None else text
        path.write_text(f"#!{sys.executable} -SE\n{body}", "utf-8")
        path.chmod(0o700)
        return path

    def log_out(self, cli: str) -> None:
        (self.folder / f"{PROGRAMS[cli]}.out").touch()

    def calls(self, cli: str) -> list[dict[str, Any]]:
        """What it noted of its calls."""
        path = self.folder / f"{PROGRAMS[cli]}.calls"
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        return [json.loads(line) for line in lines]
