"""Command-line clients of the grid, set up as their pages say. Each is a `Client` with one way to ask it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

from tests.compatibility.seats import Seat
from tests.real_programs.installing import install_python, program
from tests.real_programs.page_blocks import read_blocks, read_command, read_variables

COUNT = "echo $((6 * 7)) apples"
COUNTED = "42 apples"
"""A command for a client's shell, and what it prints."""

TIMEOUT_SECONDS = 180


REFUSED = re.compile(r"""\"param\\?": ?\\?"(\w+)|The request's '(\w+)'""")
"""The field that an error of the grid names, as JSON or by the message alone."""


class ClientError(Exception):
    """A client failed. Its text is all that the client printed."""

    @property
    def refused(self) -> str:
        """The field that the grid refused, or ""."""
        match = REFUSED.search(str(self))
        return (match[1] or match[2]) if match else ""


class Client(ABC):
    """A client in a home folder of its own, whose configuration is the one of its page.

    `tool` and `arguments` are the call that runs COUNT; `tool` is "" for a client without tools.
    `small_requests` is how many requests a new session sends to the small model. `tools_always` is true if
    every request offers tools, `resumes` if a session can go on.
    """

    name: ClassVar[str]
    page: ClassVar[str]
    tool: ClassVar[str] = ""
    arguments: ClassVar[dict[str, Any]] = {}
    small_requests: ClassVar[int] = 0
    tools_always: ClassVar[bool] = True
    resumes: ClassVar[bool] = True
    has_schemas: ClassVar[bool] = False

    def __init__(self, seat: Seat, folder: Path) -> None:
        self.seat = seat
        self.home = folder / "home"
        self.work = folder / "work"
        for made in (self.home, self.work):
            made.mkdir(parents=True, exist_ok=True)
        self.variables = {"PATH": os.environ["PATH"], "HOME": str(self.home)}
        self.set_up()

    @abstractmethod
    def set_up(self) -> None:
        """Write the configuration of the page."""

    @abstractmethod
    def ask(self, prompt: str, *, resume: bool = False, schema: dict[str, Any] | None = None) -> str:
        """Ask in a new session, or with `resume` in the last one, and return what the client printed.

        Raises ClientError if the client fails.
        """

    def run(self, *argv: str | Path, text: str = "", **variables: str) -> str:
        """Run a program with `text` as its input, end all that it started, and return its output."""
        process = subprocess.Popen(
            argv, cwd=self.work, env={**self.variables, **variables}, start_new_session=True, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        try:
            output, errors = process.communicate(text, TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, errors = process.communicate()
            raise ClientError(f"{argv[0]} did not end\n{output}\n{errors}") from None
        if process.returncode:
            raise ClientError(f"{output}\n{errors}")
        return output

    def write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")


class ClaudeCode(Client):
    name = "Claude Code"
    page = "claude-code"
    tool = "Bash"
    arguments: ClassVar = {"command": COUNT, "description": "Count"}
    has_schemas = True

    def set_up(self) -> None:
        variables = read_variables(self.page, self.seat)
        if self.seat.kind == "anthropic":  # it sends a Claude model the kind of thinking that it takes
            variables |= {name: self.seat.model for name in variables if name.endswith("MODEL")}
        self.variables |= variables

    def ask(self, prompt: str, *, resume: bool = False, schema: dict[str, Any] | None = None) -> str:
        options = ["--continue"] if resume else []
        options += ["--json-schema", json.dumps(schema)] if schema else []
        return self.run(program("claude"), "--print", prompt, "--allowedTools", "Bash", *options)


class Codex(Client):
    name = "Codex"
    page = "codex"
    tool = "exec_command"
    arguments: ClassVar = {"cmd": COUNT}
    has_schemas = True

    def set_up(self) -> None:
        (config,) = read_blocks(self.page, "toml", self.seat)
        self.write(self.home / ".codex" / "config.toml", config)
        self.variables |= read_variables(self.page, self.seat)

    def ask(self, prompt: str, *, resume: bool = False, schema: dict[str, Any] | None = None) -> str:
        last, described = self.work / "last.txt", self.work / "schema.json"
        described.write_text(json.dumps(schema))
        resumed = ["resume", "--last"] if resume else []
        options = ["--output-schema", described] if schema else []
        argv = ["exec", *resumed, "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
        self.run(program("codex"), *argv, "--output-last-message", last, *options, prompt)
        return last.read_text()


class OpencodeChat(Client):
    name = "opencode, chat"
    page = "opencode"
    package = "@ai-sdk/openai-compatible"
    tool = "bash"
    arguments: ClassVar = {"command": COUNT, "description": "Count"}
    small_requests = 1
    resumes = False

    def set_up(self) -> None:
        config = json.loads(read_blocks(self.page, "json", self.seat)[0])
        config["provider"]["gridq"]["npm"] = self.package
        self.write(self.work / "opencode.json", json.dumps(config))
        for name in ("MODELS_FETCH", "AUTOUPDATE", "DEFAULT_PLUGINS", "LSP_DOWNLOAD"):
            self.variables[f"OPENCODE_DISABLE_{name}"] = "1"

    def ask(self, prompt: str, *, resume: bool = False, schema: dict[str, Any] | None = None) -> str:
        # the prompt is its input, since it puts arguments with spaces between quotes
        return self.run(program("opencode"), "run", *(["--continue"] if resume else []), text=prompt)


class OpencodeMessages(OpencodeChat):
    name = "opencode, Messages"
    package = "@ai-sdk/anthropic"


class Cline(Client):
    """A session goes on only in a terminal."""

    name = "Cline"
    page = "cline"
    tool = "run_commands"
    arguments: ClassVar = {"commands": [COUNT]}
    resumes = False

    def set_up(self) -> None:
        self.variables["CLINE_SESSION_BACKEND_MODE"] = "local"
        settings = {"telemetryOptOut": True, "autoUpdateEnabled": False}
        self.write(self.home / ".cline" / "data" / "settings" / "global-settings.json", json.dumps(settings))
        self.run(program("cline"), *read_command(self.page, "cline auth", self.seat)[1:])

    def ask(self, prompt: str, *, resume: bool = False, schema: dict[str, Any] | None = None) -> str:
        return self.run(program("cline"), prompt)


class AiderChat(Client):
    """Aider has no tools. It edits the file that an answer names; its small model describes the commit."""

    name = "Aider, chat"
    page = "aider"
    block = 0
    small_requests = 1
    tools_always = False
    resumes = False

    def set_up(self) -> None:
        config = read_blocks(self.page, "yaml", self.seat)[self.block]
        self.write(self.home / ".aider.conf.yml", config)
        self.variables |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "AIDER_ANALYTICS": "false"}
        if self.seat.is_local:
            limit = "- name: aider/extra_params\n  extra_params:\n    max_tokens: 20\n"
            self.write(self.home / ".aider.model.settings.yml", limit)
        self.run("git", "init", "--quiet")
        for name in ("name", "email"):
            self.run("git", "config", f"user.{name}", "ada")
        self.write(self.home / ".aider" / "caches" / "model_prices_and_context_window.json", PRICES)

    def ask(self, prompt: str, *, resume: bool = False, schema: dict[str, Any] | None = None) -> str:
        options = ["--yes-always", "--no-check-update", "--no-pretty", "--no-gitignore"]
        options += ["--chat-mode", "ask"] if self.seat.is_local else []
        python = install_python("aider")
        return self.run(python, "-m", "aider", *options, "--message", prompt)


class AiderMessages(AiderChat):
    name = "Aider, Messages"
    block = 1


class LlmChat(Client):
    name = "llm, chat"
    page = "llm"
    tool = "count"
    arguments: ClassVar = {"command": COUNT}
    model = "grid"
    tools_always = False
    has_schemas = True

    def set_up(self) -> None:
        self.variables["LLM_USER_PATH"] = str(self.home / "llm")
        self.write(
            self.home / "llm" / "extra-openai-models.yaml", read_blocks(self.page, "yaml", self.seat)[0]
        )
        self.run_llm(*read_command(self.page, "llm keys set", self.seat)[1:])

    def run_llm(self, *argv: str) -> str:
        return self.run(install_python("llm"), "-m", "llm", *argv)

    def ask(self, prompt: str, *, resume: bool = False, schema: dict[str, Any] | None = None) -> str:
        options = ["--continue"] if resume else []
        options += ["--schema", json.dumps(schema)] if schema else []
        options += ["--functions", FUNCTION] if "CALL" in prompt else []
        options += ["-o", "max_tokens", "20"] if self.seat.is_local else []
        return self.run_llm("--model", self.model, *options, prompt)


class LlmMessages(LlmChat):
    name = "llm, Messages"

    def set_up(self) -> None:
        self.variables |= {"LLM_USER_PATH": str(self.home / "llm"), **read_variables(self.page, self.seat)}
        self.run_llm(*read_command(self.page, "llm anthropic refresh", self.seat)[1:])
        self.model = read_command(self.page, "llm -m anthropic/", self.seat)[2]


PRICES = '{"none": {}}'
"""Aider's list of prices and contexts, which it would fetch otherwise."""

FUNCTION = '''
def count(command: str) -> str:
    """Run a command."""
    import subprocess
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True).stdout
'''

CLIENTS: tuple[type[Client], ...] = (
    ClaudeCode, Codex, OpencodeChat, OpencodeMessages, Cline, AiderChat, AiderMessages, LlmChat, LlmMessages,
)  # fmt: skip
