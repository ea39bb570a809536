"""Start a grid with two seats of one vendor's program: one with a valid login, one with an invalid login."""

from __future__ import annotations

import functools
import json
import os
import secrets
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gridq.client import Client
from gridq.config.settings import Settings
from tests.builders import stage
from tests.fakes.anthropic_server import AnthropicServer
from tests.fakes.gemini_server import GeminiServer
from tests.fakes.http_server import ModelServer
from tests.fakes.openai_server import KEY, OpenAIServer
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
WAIT_SECONDS = 180.0
"""How long a call may take: on a busy machine, programs start slowly, and one repeats a request for a
minute.
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

    `log_in` takes the program, the folder of the login, the server's URL and the key. `provider` is the first
    part of the names of models, `retries` is true if the program repeats a request that is rejected.
    """

    server: Callable[[], ModelServer]
    log_in: Callable[[Path, Path, str, str], Login]
    streams: bool = True
    provider: str = ""
    retries: bool = False


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


def _copilot(program: Path, home: Path, url: str, key: str) -> Login:
    provider = {"TYPE": "openai", "BASE_URL": url, "API_KEY": key}
    variables = {f"COPILOT_PROVIDER_{name}": value for name, value in provider.items()}
    return Login({**variables, "COPILOT_OFFLINE": "true"})


def _opencode(program: Path, home: Path, url: str, key: str) -> Login:
    """Name a provider in settings of the owner. Without tools, the program reads no other ones of theirs."""
    options = {"baseURL": url, "apiKey": key}
    models = {model: {"name": model} for model in (*MODELS, "locked")}
    settings = home / "provider.json"
    settings.write_text(json.dumps({"provider": {"anthropic": {"options": options, "models": models}}}))
    return Login({"OPENCODE_CONFIG": str(settings), "OPENCODE_DISABLE_MODELS_FETCH": "1"})


TESTED_PROGRAMS = {
    "claude": TestedProgram(AnthropicServer, _claude),
    "codex": TestedProgram(ResponsesServer, _codex, streams=False),
    "copilot": TestedProgram(functools.partial(OpenAIServer, KEY), _copilot, retries=True),
    "gemini": TestedProgram(GeminiServer, _gemini),
    "opencode": TestedProgram(AnthropicServer, _opencode, streams=False, provider="anthropic/"),
}


@dataclass
class Grid:
    """A running grid: its server and client, the folder of the logs, and the owner's home folder."""

    tested: TestedProgram
    program: Path
    folder: Path
    user: Path
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

        return wait_for(find_record, WAIT_SECONDS)

    def complete(self, model: str) -> dict[str, object]:
        """Return a graph of one stage that asks `model`."""
        return {"root": stage("llm_complete", model=self.tested.provider + model)}

    def list_requests(self, model: str) -> list[dict[str, Any]]:
        """Return the server's requests for `model`, which Google's API has in the path."""
        return [
            each
            for each in self.server.requests
            if each["body"].get("model") == model or f"/{model}:" in each["path"]
        ]


@contextmanager
def up(
    name: str, url: str, folder: Path, *, tools: bool = False, variables: Mapping[str, str] | None = None
) -> Iterator[Grid]:
    """Run the grid of one program on the server at `url`.

    With `tools` the program may use its tools. `variables` are others that it may see.
    """
    tested, path = TESTED_PROGRAMS[name], program(name)
    user = folder / "user"
    user.mkdir(mode=0o700)
    with tested.server() as server:
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
            seen = {**login.variables, **(variables or {})}
            declared = ", ".join(f'{{ name = "{tested.provider}{model}" }}' for model in models)
            tables += SEAT.format(
                name=seat, cli=name, program=path, home=home, env=json.dumps([*seen]),
                args=json.dumps(login.args), tools=json.dumps(tools), models=declared,
            )  # fmt: skip
            workers[seat] = {
                "GRIDQ_LOG": "json",
                "GRIDQ_LOG_LEVEL": "DEBUG",
                "GRIDQ_NARRATE": "1",
                "GRIDQ_DRAIN": "1",
                "HOME": str(user),
                **seen,
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
            yield Grid(tested, path, folder, user, server, client)
