"""Fakes of the vendors' programs, on a PATH of their own; see `fixtures/programs/fake.py`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

FAKE = Path(__file__).parents[1] / "fixtures" / "programs" / "fake.py"
PROGRAMS = {
    "claude": "claude",
    "codex": "codex",
    "copilot": "copilot",
    "cursor": "cursor-agent",
    "gemini": "gemini",
    "opencode": "opencode",
}


class FakePrograms:
    """Fake programs in a folder. `environ` is an environment whose PATH has only them."""

    def __init__(self, folder: Path, *names: str) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        for name in names:
            self.install(name)
        self.environ = {
            "PATH": f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin",
            "HOME": str(folder),
            "SECRET_THING": "never",
        }

    def install(self, name: str, text: str | None = None) -> Path:
        """Install a fake, or a program with the Python source `text`."""
        path = self.folder / PROGRAMS[name]
        body = FAKE.read_text("utf-8") if text is None else text
        path.write_text(f"#!{sys.executable} -SE\n{body}", "utf-8")
        path.chmod(0o700)
        return path

    def log_out(self, name: str) -> None:
        (self.folder / f"{PROGRAMS[name]}.out").touch()

    def calls(self, name: str) -> list[dict[str, Any]]:
        """Return the records that the fake wrote of its calls."""
        path = self.folder / f"{PROGRAMS[name]}.calls"
        lines = path.read_text("utf-8").splitlines() if path.exists() else []
        return [json.loads(line) for line in lines]
