"""Commands of an operator to a live seat: load a model, or unload one.

They wait in a list of the seat, which its worker reads each second, and are answered under their id. A worker
that is gone answers nothing, and what it did not read expires.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from redis import Redis

from gridq.protocol.models import Json
from gridq.store.keys import Keys

log = logging.getLogger(__name__)

Action = Literal["load", "unload"]
State = Literal["waiting", "running", "done", "failed"]

WAIT_SECONDS = 60
"""A command that no worker reads in this time is void."""

ANSWER_SECONDS = 600
MAX_COMMANDS = 64
"""Commands that wait at one seat; the oldest give way."""


@dataclass(frozen=True)
class Command:
    """One command, as its seat's worker reads it."""

    id: str
    action: Action
    model: str


@dataclass(frozen=True)
class Answer:
    """The state of a command. `error` is the record of a GridError if it failed."""

    state: State
    error: dict[str, Json] | None = None


def send_command(client: Redis, keys: Keys, seat: str, action: Action, model: str) -> str:
    """Send a command to a seat. Return its id."""
    command_id = secrets.token_hex(8)
    name = keys("model_commands", seat)
    pipe = client.pipeline(transaction=True)
    pipe.rpush(name, json.dumps({"id": command_id, "action": action, "model": model}))
    pipe.ltrim(name, -MAX_COMMANDS, -1)
    pipe.expire(name, WAIT_SECONDS)
    pipe.execute()
    return command_id


def take_commands(client: Redis, keys: Keys, seat: str) -> Iterator[Command]:
    """Yield the commands that wait at a seat. What is yielded is taken; one that is damaged is left out."""
    waiting: Any = client.lpop(keys("model_commands", seat), MAX_COMMANDS)
    for text in waiting or ():
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError):
            fields = None
        match fields:
            case {"id": str(name), "action": "load" | "unload" as action, "model": str(model)}:
                yield Command(name, action, model)
            case _:
                log.warning("seat %s: a damaged command is left out", seat)


def answer_command(client: Redis, keys: Keys, command: Command, answer: Answer) -> None:
    """Say how far a command is."""
    text = json.dumps({"state": answer.state, "error": answer.error})
    client.set(keys("model_command", command.id), text, ex=ANSWER_SECONDS)


def read_answer(client: Redis, keys: Keys, command_id: str) -> Answer:
    """Return how far a command is: `waiting` until its worker has read it."""
    text = client.get(keys("model_command", command_id))
    if text is None:
        return Answer("waiting")
    fields = json.loads(text)
    return Answer(fields["state"], fields["error"])
