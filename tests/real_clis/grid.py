"""A grid with two seats of one vendor's program: one well logged in, and one whose login is refused."""

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
from tests.pointed import pointed_at
from tests.real_clis.installing import program
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
    """What a seat's table says of it: variables of its worker that the program sees, further arguments."""

    variables: dict[str, str] = field(default_factory=dict)
    args: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cli:
    """A program, the server of the API format that it speaks, and how one logs in there.

    `log_in` takes the program, the folder of the login, the server's URL and the key.
    """

    server: Callable[[], ModelServer]
    log_in: Callable[[Path, Path, str, str], Login]
    streams: bool = True


def _claude(program: Path, home: Path, url: str, key: str) -> Login:
    return Login({"ANTHROPIC_BASE_URL": url.removesuffix("/v1"), "ANTHROPIC_API_KEY": key})


def _codex(program: Path, home: Path, url: str, key: str) -> Login:
    """By its own `codex login`, at a provider of the owner's."""
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "CODEX_HOME": str(home)}
    argv = [program, "login", "--with-api-key"]
    subprocess.run(argv, input=key.encode(), env=env, capture_output=True, timeout=60, check=True)
    told = f'name="local", base_url="{url}", wire_api="responses", requires_openai_auth=true'
    told += ", request_max_retries=0, stream_max_retries=0"
    return Login(args=("-c", 'model_provider="local"', "-c", f"model_providers.local={{{told}}}"))


def _gemini(program: Path, home: Path, url: str, key: str) -> Login:
    settings = {"security": {"auth": {"selectedType": "gemini-api-key"}}}
    (home / ".gemini").mkdir()
    (home / ".gemini" / "settings.json").write_text(json.dumps(settings))
    return Login({"GOOGLE_GEMINI_BASE_URL": url.removesuffix("/v1beta"), "GEMINI_API_KEY": key})


CLIS = {
    "claude": Cli(AnthropicServer, _claude),
    "codex": Cli(ResponsesServer, _codex, streams=False),
    "gemini": Cli(GeminiServer, _gemini),
}


@dataclass
class Grid:
    """What runs: the program's server, a client, the folder of the children's logs and the cache below which
    calls have their folders.
    """

    cli: Cli
    program: Path
    folder: Path
    cache: Path
    server: ModelServer
    client: Client

    def told(self, event: str, job: str) -> dict[str, Any]:
        """The line of the logs that says `event` of a job, once it is there."""

        def there() -> dict[str, Any]:
            for path in self.folder.glob("logs*/*.log"):
                for line in path.read_text(errors="replace").splitlines():
                    said = json.loads(line) if line.startswith("{") else {}
                    if said.get("event") == event and said.get("job") == job:
                        return said
            return {}

        return wait_for(there, 60)

    def asked(self, model: str) -> list[dict[str, Any]]:
        """The requests that the server got for `model`, which Google's has in the path."""
        return [
            each
            for each in self.server.requests
            if each["body"].get("model") == model or f"/{model}:" in each["path"]
        ]


@contextmanager
def own_cache() -> Iterator[Path]:
    """A folder for what seats keep, instead of the user's cache. It lies in the home folder, for Gemini CLI
    takes no settings from a place below one that others can write to, as folders of tests are.
    """
    base = Path.home() / ".cache"
    base.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gridq-tests-", dir=base, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@contextmanager
def up(name: str, url: str, folder: Path, *, tools: bool = False) -> Iterator[Grid]:
    """The grid of one program on the server at `url`; `tools`: its owner lets it use its tools."""
    cli, path = CLIS[name], program(name)
    with cli.server() as server, own_cache() as cache:
        assert server.key is not None
        workers = {}
        tables = ""
        for seat, key, models in (
            ("good", server.key, MODELS),
            ("refused", "sk-of-nobody-012345", ("locked",)),
        ):
            home = folder / seat
            home.mkdir()
            login = cli.log_in(path, home, server.url, key)
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
            pointed_at(config) as client,
            GridProcesses(config, ["good"], folder=folder / "logs", env=workers["good"]),
            GridProcesses(config, ["refused"], routers=0, folder=folder / "logs2", env=workers["refused"]),
        ):
            yield Grid(cli, path, folder, cache, server, client)
