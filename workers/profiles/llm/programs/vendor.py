"""The description of a vendor's program (`VendorProgram`), and the base class of the parsers of its output.

A `VendorProgram` is a table: the command line, the environment, the error messages. The other modules of this
folder start, read and stop all programs in the same way.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from gridq.protocol.models import Json, Usage
from workers.model_apis.api_request import SHAPE_ERRORS

MAX_NOISE_CHARACTERS = 4000
"""Characters to keep of the output that is not JSON."""

SLASH_COMMAND = re.compile(r"[^\w!-~]*/")
"""A slash as the first visible character. A program may cut off white space and control characters."""

_ESCAPES = re.compile(rb"\x1b(?:\[[0-9;?]*[A-Za-z]|\][^\x07\x1b]*(?:\x07|\x1b\\))")


class Failure(StrEnum):
    """A known failure of a program. The value is the state of the seat."""

    LOGGED_OUT = "logged out"
    EXPIRED = "login expired"
    NO_CREDIT = "no credit"
    LIMITED = "rate limited"
    OVERLOADED = "overloaded"
    NO_MODEL = "model unknown"
    BROKEN = "broken install"
    REFUSED = "request refused"


@dataclass(frozen=True)
class ProgramCall:
    """One call of a program.

    `folder` is the call's own empty working folder. Beside it are `input_folder`, for files that the program
    should read, and `temp_folder`, for files that it writes by itself. `system` and `schema` are set only if
    the program supports them. `streams` is true if a client reads the pieces, `allows_tools` if the owner
    lets the program use its tools. `args` are the owner's additional arguments, `login_folder` is the folder
    of the login.
    """

    model: str
    folder: Path
    input_folder: Path
    temp_folder: Path
    login_folder: Path = Path()
    system: str = ""
    schema: Json = None
    streams: bool = False
    allows_tools: bool = False
    args: tuple[str, ...] = ()

    def write_file(self, name: str, text: str) -> str:
        """Write a file for the program and return its path."""
        path = self.input_folder / name
        path.write_text(text, "utf-8", errors="replace")
        return str(path)

    def link_login(self, *names: str) -> str:
        """Return a folder that has only these files of the login's folder, as links.

        It replaces the login's folder for programs that send the owner's own instructions, skills and earlier
        conversations from there to the model, without an option against it.
        """
        folder = self.input_folder / "login"
        folder.mkdir()
        for name in names:
            if (self.login_folder / name).is_file():
                link = folder / name
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(self.login_folder / name)
        return str(folder)


@dataclass
class OutputParser(ABC):
    """Parses the output of one call, line by line. A line that is no JSON object goes to `noise`.

    `is_complete` is true once the program reports the answer as complete. `refusal` is its reason for giving
    none. `usage` and `dollars` are what it reports as used, None if it reports nothing.
    """

    has_text: bool = False
    is_complete: bool = False
    finish_reason: str = "stop"
    refusal: str = ""
    usage: Usage | None = None
    dollars: float | None = None
    noise: str = ""

    def add_line(self, line: bytes) -> str:
        """Take one line. Return the text that it adds to the answer."""
        if b"\x1b" in line[:64]:
            line = _ESCAPES.sub(b"", line)
        event = None
        if line.lstrip()[:1] == b"{":
            try:
                event = json.loads(line)
            except (ValueError, RecursionError):
                event = None
        if not isinstance(event, dict):
            noise = self.noise + line.decode("utf-8", "replace").strip() + "\n"
            self.noise = noise[-MAX_NOISE_CHARACTERS:]
            return ""
        try:
            text = self.add_event(event)
        except SHAPE_ERRORS:  # an event of a known kind whose fields have an unknown shape
            text = ""
        self.has_text = self.has_text or bool(text)
        return text

    @abstractmethod
    def add_event(self, event: dict[str, Json]) -> str:
        """Take one JSON object. Return the text that it adds. Events of unknown kinds add none."""

    def refuse(self, reason: Json) -> None:
        """Record that the call has no answer, and why."""
        self.refusal = reason if isinstance(reason, str) else json.dumps(reason)
        self.is_complete = False


@dataclass(frozen=True)
class LoginCheck:
    """A command that shows for free whether somebody is logged in. `logged_out` matches if nobody is."""

    argv: tuple[str, ...]
    logged_out: re.Pattern[str]


@dataclass(frozen=True)
class VendorProgram:
    """One vendor's program.

    `names` are the names of the executable, the usual one first. `make_arguments` returns the arguments of a
    call; the prompt goes to stdin. `home` are the variables that move the login to another folder, for which
    `{home}` stands. `homes` are its default places, of which the first that is set applies. `environment`
    are variables that the program may see beside those of every program, `settings` variables that it always
    gets, and `make_variables` returns those of a call.

    `failure_patterns` match the program's error messages; the first match decides. `hopeless` matches one
    about a failed attempt that the program would repeat forever. `commands` matches the start of a prompt
    that the program would run as a command instead of asking its model. `rule` is the vendor's rule on who
    may use a login, `log_in` how its owner logs in, `example` a model for a table. `proven` is the lowest
    version for which `make clis` shows that it reads no files for a prompt if its tools are off, "" if that
    is not shown for any. `supports_system` and `supports_schema` are true if the program has options for a
    system prompt and for a JSON schema.
    """

    name: str
    title: str
    names: tuple[str, ...]
    make_arguments: Callable[[ProgramCall], list[str]]
    make_parser: Callable[[ProgramCall], OutputParser]
    home: Mapping[str, str]
    homes: tuple[str, ...]
    log_in: str
    rule: str
    example: str
    proven: str
    login_check: LoginCheck | None = None
    environment: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    make_variables: Callable[[ProgramCall], Mapping[str, str]] | None = None
    failure_patterns: tuple[tuple[Failure, re.Pattern[str]], ...] = ()
    hopeless: re.Pattern[str] | None = None
    commands: re.Pattern[str] | None = None
    supports_system: bool = True
    supports_schema: bool = False


def compile_patterns(**expressions: str) -> tuple[tuple[Failure, re.Pattern[str]], ...]:
    """Return the `failure_patterns` of a program from regular expressions by failure, in lower case."""
    return tuple(
        (Failure[name.upper()], re.compile(expression, re.IGNORECASE))
        for name, expression in expressions.items()
    )


def as_object(value: Json) -> dict[str, Json]:
    """Return `value` if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}
