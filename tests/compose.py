"""Read docker-compose.yml as Compose does, and run its services as plain processes.

No container engine is needed. A service's command runs with its environment; only folders, hosts and ports
that differ inside a container are replaced.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

ROOT = Path(__file__).parents[1]
COMPOSE = ROOT / "docker-compose.yml"

_VARIABLE = re.compile(r"\$(?:(\$)|\{(\w+):-([^}]*)\})")


def load() -> dict[str, Any]:
    """Return the file's data, with merges applied and variables at their defaults."""
    return _interpolated(YAML(typ="safe").load(COMPOSE.read_text()))  # type: ignore[no-any-return]


def _interpolated(value: Any) -> Any:
    if isinstance(value, str):
        return _VARIABLE.sub(lambda match: match[1] or match[3], value)
    if isinstance(value, dict):
        return {name: _interpolated(each) for name, each in value.items()}
    return [_interpolated(each) for each in value] if isinstance(value, list) else value


@dataclass(frozen=True)
class Service:
    """One container of a service, as a process. `here` maps text of the file to its replacement on this
    machine.
    """

    name: str
    spec: Mapping[str, Any]
    here: Mapping[str, str]
    path: str
    folder: Path

    def environment(self) -> dict[str, str]:
        """Return the environment of the container, with this machine's PATH."""
        given = {name: self._here(value) for name, value in self.spec.get("environment", {}).items()}
        return {"PATH": self.path, "HOME": str(self.folder), "PYTHONWARNINGS": "ignore", **given}

    def start(self) -> subprocess.Popen[bytes]:
        """Start the service. Its output goes to `<folder>/<name>.log`."""
        argv = [
            *map(self._here, self.spec.get("entrypoint", [])),
            *map(self._here, _words(self.spec["command"])),
        ]
        with (self.folder / f"{self.name}.log").open("ab") as log:
            return subprocess.Popen(
                argv,
                env=self.environment(),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def run(self, *argv: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a program in the container's environment, like `docker compose exec`."""
        return subprocess.run(
            argv, env=self.environment(), capture_output=True, text=True, timeout=60, check=False, **options
        )

    def is_healthy(self) -> bool:
        """Return whether the service passes its health check."""
        how, *words = map(self._here, self.spec["healthcheck"]["test"])
        argv = ["sh", "-c", *words] if how == "CMD-SHELL" else words
        return self.run(*argv).returncode == 0

    def _here(self, text: str) -> str:
        for there, here in self.here.items():
            text = text.replace(there, here)
        return text


def _words(command: str | list[str]) -> list[str]:
    return shlex.split(command) if isinstance(command, str) else command


def programs(folder: Path, **links: str) -> str:
    """Return a PATH with this Python's programs and `links` (name → program) before the machine's own."""
    folder.mkdir()
    for name, target in links.items():
        (folder / name.replace("_", "-")).symlink_to(target)
    return os.pathsep.join([str(folder), str(Path(sys.executable).parent), os.environ["PATH"]])
