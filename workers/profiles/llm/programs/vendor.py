"""What gridq knows of a vendor's program: one `Provider` for each, and the reader of its output.

A provider is a table: how the program is called, what it needs, how its words are to be understood. All that
is done with it (starting, reading, killing, judging) is the same for each and stands in the modules beside
this one.
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
from workers.model_apis.request import ODD

NOISE = 4000
"""Characters kept of what a program writes beside its JSON."""

_ESCAPES = re.compile(rb"\x1b(?:\[[0-9;?]*[A-Za-z]|\][^\x07\x1b]*(?:\x07|\x1b\\))")


class Fault(StrEnum):
    """What can be wrong with a program's login, as its own words tell it."""

    LOGGED_OUT = "logged out"
    EXPIRED = "login expired"
    NO_CREDIT = "no credit"
    LIMITED = "rate limited"
    OVERLOADED = "overloaded"
    NO_MODEL = "model unknown"
    BROKEN = "broken install"
    REFUSED = "request refused"


@dataclass(frozen=True)
class Ask:
    """One call: what the argv is made of.

    `folder` is the call's own empty working folder; beside it are `told`, for files that the program is
    pointed at, and `temporary`, for what it writes of its own accord. `system` and `schema` are only set
    where the provider has a way for them. `partial`: somebody reads the pieces. `tools`: the owner lets the
    program use its tools. `args`: what the owner adds.
    """

    model: str
    folder: Path
    told: Path
    temporary: Path
    system: str = ""
    schema: Json = None
    partial: bool = False
    tools: bool = False
    args: tuple[str, ...] = ()

    def file(self, name: str, text: str) -> str:
        """Write a file that the program is to read; its path."""
        path = self.told / name
        path.write_text(text, "utf-8", errors="replace")
        return str(path)


@dataclass
class Reader(ABC):
    """One answer as it comes in, line by line. A line that is no JSON object is kept apart as noise.

    `complete`: the program said that its answer is whole. `refusal`: its own words for why there is none.
    `usage` and `dollars`: what it said that the call has used, None where it said nothing.
    """

    text: bool = False
    complete: bool = False
    finish: str = "stop"
    refusal: str = ""
    session: str = ""
    usage: Usage | None = None
    dollars: float | None = None
    noise: str = ""

    def take(self, line: bytes) -> str:
        """Take one line in; returns the text that it adds to the answer, "" where it adds none."""
        if b"\x1b" in line[:64]:
            line = _ESCAPES.sub(b"", line)
        event = None
        if line.lstrip()[:1] == b"{":
            try:
                event = json.loads(line)
            except (ValueError, RecursionError):
                event = None
        if not isinstance(event, dict):
            self.noise = (self.noise + line.decode("utf-8", "replace").strip() + "\n")[-NOISE:]
            return ""
        try:
            added = self.event(event)
        except ODD:  # an event of a known kind with fields of an unknown shape
            added = ""
        self.text = self.text or bool(added)
        return added

    @abstractmethod
    def event(self, event: dict[str, Json]) -> str:
        """The same of one JSON object. An event of a kind that is not known says nothing."""

    def refused(self, words: Json) -> None:
        """Keep `words` as the reason why there is no answer."""
        self.refusal = words if isinstance(words, str) else json.dumps(words)
        self.complete = False


@dataclass(frozen=True)
class Login:
    """A call that tells whether somebody is logged in and costs nothing. `out` is what it says where nobody
    is.
    """

    argv: tuple[str, ...]
    out: re.Pattern[str]


@dataclass(frozen=True)
class Provider:
    """One vendor's program.

    `programs` are its names, the usual one first. `argv` gives what follows the name; the prompt goes by
    stdin. `home` are the variables that move its login to another folder (`{home}` stands for the folder),
    `homes` where that is by default: the first that is set. `environment` are the names of variables that it
    may see beside those that every program may, `settings` what it is always told, `variables` what it is
    told with a call. `words` are its texts for what can be wrong, the first that is found counts; `unsafe`
    are those that say that its tools are not taken away, `hopeless` those by which a program tells of a try
    that failed and goes on trying for ever. `commands` matches the head of a prompt that the program would
    take as a command to itself and answer without its model. `rule` is the vendor's rule on who may use a
    login, `log_in` how its owner logs in, `example` a model for a table.
    """

    name: str
    title: str
    programs: tuple[str, ...]
    argv: Callable[[Ask], list[str]]
    reader: Callable[[Ask], Reader]
    home: Mapping[str, str]
    homes: tuple[str, ...]
    log_in: str
    rule: str
    example: str
    login: Login | None = None
    environment: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    variables: Callable[[Ask], Mapping[str, str]] | None = None
    words: tuple[tuple[Fault, re.Pattern[str]], ...] = ()
    unsafe: re.Pattern[str] | None = None
    hopeless: re.Pattern[str] | None = None
    commands: re.Pattern[str] | None = None
    system: bool = True
    schema: bool = False


def patterns(**texts: str) -> tuple[tuple[Fault, re.Pattern[str]], ...]:
    """A provider's `words`: a regular expression for each fault, by the fault's name in lower case."""
    return tuple((Fault[name.upper()], re.compile(text, re.IGNORECASE)) for name, text in texts.items())


def record(value: Json) -> dict[str, Json]:
    """`value` as an object, an empty one where it is none."""
    return value if isinstance(value, dict) else {}
