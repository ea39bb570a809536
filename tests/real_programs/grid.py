"""Start a grid with two seats of one vendor's program: one with a valid login, one with an invalid login."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gridq.client import Client
from gridq.config.settings import Settings
from tests.fakes.anthropic_server import AnthropicServer
from tests.fakes.gemini_server import GeminiServer
from tests.fakes.http_server import ModelServer
from tests.fakes.responses_server import ResponsesServer
from tests.grid_environment import use_grid
from tests.real_programs.installing import program
from tests.waiting import wait_for
from workers.supervisor.grid_processes import GridProcesses

SEAT = """
[[llm]]
name = "{name}"
cli = "{cli}"
program = "{program}"
home = "{home}"
env = {env}
args = {args}
tools = {tools}
models = [{models}]
"""
MODELS = ("echo", "silent", "status-429")


@dataclass(frozen=True)
class Login:
    """The login fields of a seat's table: variables that the program may see, and additional arguments."""

    variables: dict[str, str] = field(default_factory=dict)
    args: tuple[str, ...] = ()


@dataclass(frozen=True)
class TestedProgram:
    """A program, the fake server of its API format, and the login there.

    `log_in` takes the program, the folder of the login, the server's URL and the key.
    """

    server: Callable[[], ModelServer]
    log_in: Callable[[Path, Path, str, str], Login]
    streams: bool = True


def _claude(program: Path, home: Path, url: str, key: str) -> Login:
    return Login({"ANTHROPIC_BASE_URL": url.removesuffix("/v1"), "ANTHROPIC_API_KEY": key})


def _codex(program: Path, home: Path, url: str, key: str) -> Login:
    """Log in with `codex login`, at a provider of the owner."""
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "CODEX_HOME": str(home)}
    argv = [program, "login", "--with-api-key"]
    subprocess.run(argv, input=key.encode(), env=env, capture_output=True, timeout=60, check=True)
    provider = f'name="local", base_url="{url}", wire_api="responses", requires_openai_auth=true'
    provider += ", request_max_retries=0, stream_max_retries=0"
    return Login(args=("-c", 'model_provider="local"', "-c", f"model_providers.local={{{provider}}}"))


def _gemini(program: Path, home: Path, url: str, key: str) -> Login:
    settings = {"security": {"auth": {"selectedType": "gemini-api-key"}}}
    (home / ".gemini").mkdir()
    (home / ".gemini" / "settings.json").write_text(json.dumps(settings))
    return Login({"GOOGLE_GEMINI_BASE_URL": url.removesuffix("/v1beta"), "GEMINI_API_KEY": key})


TESTED_PROGRAMS = {
    "claude": TestedProgram(AnthropicServer, _claude),
    "codex": TestedProgram(ResponsesServer, _codex, streams=False),
    "gemini": TestedProgram(GeminiServer, _gemini),
}


@dataclass
class Grid:
    """A running grid: its server and client, the folder of the logs, and the cache with folders of calls."""

    tested: TestedProgram
    program: Path
    folder: Path
    cache: Path
    server: ModelServer
    client: Client

    def wait_for_log(self, event: str, job: str) -> dict[str, Any]:
        """Wait for the log record `event` of a job and return it."""

        def find_record() -> dict[str, Any]:
            for path in self.folder.glob("logs*/*.log"):
                for line in path.read_text(errors="replace").splitlines():
                    record = json.loads(line) if line.startswith("{") else {}
                    if record.get("event") == event and record.get("job") == job:
                        return record
            return {}

        return wait_for(find_record, 60)

    def list_requests(self, model: str) -> list[dict[str, Any]]:
        """Return the server's requests for `model`, which Google's API has in the path."""
        return [
            each
            for each in self.server.requests
            if each["body"].get("model") == model or f"/{model}:" in each["path"]
        ]


@contextmanager
def own_cache() -> Iterator[Path]:
    """A folder that replaces the user's cache. It is in the home folder, because Gemini CLI reads no settings
    below a folder that others can write to, such as the folders of tests.
    """
    base = Path.home() / ".cache"
    base.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gridq-tests-", dir=base, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@contextmanager
def up(name: str, url: str, folder: Path, *, tools: bool = False) -> Iterator[Grid]:
    """Run the grid of one program on the server at `url`. With `tools` the program may use its tools."""
    tested, path = TESTED_PROGRAMS[name], program(name)
    with tested.server() as server, own_cache() as cache:
        assert server.key is not None
        workers = {}
        tables = ""
        for seat, key, models in (
            ("good", server.key, MODELS),
            ("refused", "sk-of-nobody-012345", ("locked",)),
        ):
            home = folder / seat
            home.mkdir()
            login = tested.log_in(path, home, server.url, key)
            declared = ", ".join(f'{{ name = "{model}" }}' for model in models)
            tables += SEAT.format(
                name=seat, cli=name, program=path, home=home, env=json.dumps([*login.variables]),
                args=json.dumps(login.args), tools=json.dumps(tools), models=declared,
            )  # fmt: skip
            workers[seat] = {
                "GRIDQ_LOG": "json",
                "GRIDQ_LOG_LEVEL": "DEBUG",
                "GRIDQ_NARRATE": "1",
                "GRIDQ_DRAIN": "1",
                "XDG_CACHE_HOME": str(cache),
                **login.variables,
            }
        (folder / "home").mkdir(mode=0o700)
        (folder / "home" / "seats.toml").write_text(tables)
        config = Settings(
            broker_url=url, prefix=f"c{secrets.token_hex(3)}:", home=folder / "home", profiles=("llm",)
        )  # fmt: skip
        with (
            use_grid(config) as client,
            GridProcesses(config, ["good"], folder=folder / "logs", env=workers["good"]),
            GridProcesses(config, ["refused"], routers=0, folder=folder / "logs2", env=workers["refused"]),
        ):
            yield Grid(tested, path, folder, cache, server, client)
