"""docs/reference/http.md: its commands work, and it names every header and route."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from gridq.config.settings import Settings
from gridq.gateway.app import create_app
from gridq.gateway.http.request_options import KNOWN_HEADERS
from gridq.gateway.options import GatewayOptions
from tests.integration.gateway.conftest import Served

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "reference" / "http.md").read_text("utf-8")
LINES = [
    line for block in re.findall(r"^```bash\n(.*?)^```", TEXT, re.M | re.S) for line in block.splitlines()
]


def test_the_page_has_commands() -> None:
    assert len(LINES) >= 15
    assert all(line.startswith("curl ") for line in LINES)


def test_the_commands_work_in_their_order(served: Served) -> None:
    for line in LINES:
        command, _, status = line.partition(" # ")
        words = [
            word.replace("$GRIDQ", served.url).replace("$SECRET", "none") for word in shlex.split(command)
        ]
        words += ["--silent", "--show-error", "--max-time", "40", "--write-out", "\n%{http_code}"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
        body, _, code = done.stdout.rpartition("\n")
        assert code in ((status,) if status else ("200", "201", "202")), (line, done.stdout)
        if "wait=30" in line:
            assert '"output":"Hello, Ann"' in body
        if line.startswith("curl -N"):
            assert body.rstrip().endswith("[DONE]") or "event: end" in body, body


@pytest.mark.parametrize("header", sorted(name.decode() for name in KNOWN_HEADERS))
def test_the_page_names_every_header(header: str) -> None:
    assert f"`{header}" in TEXT


def test_the_page_names_every_route() -> None:
    for path in create_app(Settings(), GatewayOptions()).openapi()["paths"]:
        shown = re.sub(r"^/v1/models/.*", "/v1/models", path)
        last = shown.rpartition("/")[2]
        assert shown in TEXT or f"/{last}`" in TEXT, path
