"""Run `gridq flower` as a process, and render its pages in a browser."""

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
    """Flower on a free port. `client` sends the password, `anonymous` does not."""

    def __init__(self, environ: dict[str, str], *arguments: str) -> None:
        self.arguments = arguments
        self.environ = {
            **os.environ, "PYTHONWARNINGS": "ignore", **environ,
            parent_watch.PARENT_VARIABLE: str(os.getpid()),
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
            raise AssertionError(f"Flower ended with {self.process.wait()}: {self.read_log()}")
        self.about: dict[str, Any] = json.loads("".join(lines))
        self.host = f"127.0.0.1:{self.about['port']}"
        self.password = Path(self.about["password_file"]).read_text().strip()
        self.anonymous = httpx.Client(base_url=f"http://{self.host}", timeout=20)
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
        self.anonymous.close()
        self.client.close()

    def read_log(self) -> str:
        """Return the text of its log."""
        self.log.seek(0)
        return self.log.read()

    def get(self, path: str) -> Any:
        """Return the JSON at `path`."""
        answer = self.client.get(path)
        assert answer.status_code == 200, (path, answer.status_code, answer.text)
        return answer.json()

    def page(self, path: str, picture: Path | None = None) -> str:
        """Return the HTML of a page after its scripts have run in Chromium; save a screenshot as `picture`.

        Skips the test if Chromium is not installed.
        """
        program = next(filter(None, map(shutil.which, CHROMIUM)), None)
        if program is None:
            pytest.skip(f"no browser is installed: none of {', '.join(CHROMIUM)}")
        url = f"http://{self.about['user']}:{self.password}@{self.host}{path}"
        want = ["--dump-dom"] if picture is None else [f"--screenshot={picture}"]
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
            done = subprocess.run(
                [program, *QUIET, f"--user-data-dir={profile}", *want, url],
                capture_output=True, text=True, timeout=60, check=True,
            )  # fmt: skip
        return done.stdout


def read_task(flower: FlowerProcess, uuid: str) -> dict[str, Any]:
    """Return what Flower knows about a task; empty if it does not know the task."""
    answer = flower.client.get(f"/api/task/info/{uuid}")
    return answer.json() if answer.status_code == 200 else {}
