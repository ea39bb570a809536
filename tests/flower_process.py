"""`gridq flower` as a process of its own, and a browser to look at it with."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Self

import httpx
import pytest

from gridq.process import parent_watch

RUN = "from gridq.cli import main; main()"
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
QUIET = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
    "--window-size=1500,900", "--virtual-time-budget=6000",
)  # fmt: skip


class FlowerProcess:
    """Flower on a free port; `client` asks it with the password, `bare` without."""

    def __init__(self, environ: dict[str, str], *arguments: str) -> None:
        self.arguments = arguments
        self.environ = {
            **os.environ, "PYTHONWARNINGS": "ignore", **environ, parent_watch.PARENT_VARIABLE: str(os.getpid()),
        }  # fmt: skip

    def __enter__(self) -> Self:
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [sys.executable, "-c", RUN, "flower", "--port", "0", "--json", *self.arguments],
            stdout=subprocess.PIPE, stderr=self.log, env=self.environ, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        lines: list[str] = []
        for line in self.process.stdout:
            lines.append(line)
            if line == "}\n":
                break
        else:
            raise AssertionError(f"Flower ended with {self.process.wait()}: {self.said()}")
        self.about: dict[str, Any] = json.loads("".join(lines))
        self.host = f"127.0.0.1:{self.about['port']}"
        self.password = Path(self.about["password_file"]).read_text().strip()
        self.bare = httpx.Client(base_url=f"http://{self.host}", timeout=20)
        self.client = httpx.Client(
            base_url=f"http://{self.host}", auth=(self.about["user"], self.password), timeout=20
        )
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.log.close()
        self.bare.close()
        self.client.close()

    def said(self) -> str:
        """What it has written to its log."""
        self.log.seek(0)
        return self.log.read()

    def get(self, path: str) -> Any:
        """The JSON at `path`."""
        answer = self.client.get(path)
        assert answer.status_code == 200, (path, answer.status_code, answer.text)
        return answer.json()

    def page(self, path: str, picture: Path | None = None) -> str:
        """The HTML of a page after its scripts have run in Chromium, and a `picture` of it. Skips where there
        is no Chromium.
        """
        program = next(filter(None, map(shutil.which, CHROMIUM)), None)
        if program is None:
            pytest.skip(f"no browser: none of {', '.join(CHROMIUM)} is installed")
        url = f"http://{self.about['user']}:{self.password}@{self.host}{path}"
        want = ["--dump-dom"] if picture is None else [f"--screenshot={picture}"]
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
            done = subprocess.run(
                [program, *QUIET, f"--user-data-dir={profile}", *want, url],
                capture_output=True, text=True, timeout=60, check=True,
            )  # fmt: skip
        return done.stdout


def known(flower: FlowerProcess, uuid: str) -> dict[str, Any]:
    """What Flower knows of a task; empty where it knows none."""
    answer = flower.client.get(f"/api/task/info/{uuid}")
    return answer.json() if answer.status_code == 200 else {}
