"""`gridq load` and `gridq unload`: sent by the command line, carried out by the seat's worker."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from gridq.cli import app
from gridq.cli.commands import load as load_command
from gridq.client import Client
from gridq.seats import model_commands
from tests.conftest import GridEnv
from tests.fakes.commanded_models import CommandedModels
from tests.unit.seats.live_seats import add_live_seat, open_client
from tests.waiting import wait_for
from workers.process.model_commands import ModelCommands

SEAT = "m.cpu"


@pytest.fixture
def client(grid_env: GridEnv) -> Iterator[Client]:
    with open_client(grid_env) as started:
        add_live_seat(started, SEAT, "llm:any", state="ready")
        yield started


@pytest.fixture
def models(client: Client) -> Iterator[CommandedModels]:
    profile = CommandedModels()
    commands = ModelCommands(client.redis, client.keys, SEAT, profile)
    commands.start()
    yield profile
    profile.go.set()
    commands.stop()


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, [*arguments])
    return result.exit_code, result.stdout


def test_a_model_is_loaded_and_unloaded_on_command(models: CommandedModels):
    assert run("load", "cpu", "small") == (0, f"small is loaded at {SEAT}\n")
    code, output = run("unload", SEAT, "small", "--json")
    assert code == 0
    assert json.loads(output) == {"seat": SEAT, "model": "small", "state": "unloaded"}
    assert models.log == ["+small", "-small"]


def test_a_damaged_command_costs_only_itself(client: Client, models: CommandedModels):
    waiting = client.keys("model_commands", SEAT)
    damaged = [
        "no JSON",
        "[]",
        '{"id": "x", "action": "erase", "model": "small"}',
        '{"id": 1}',
        "[" * 100_000,
    ]
    pipe = client.redis.pipeline(transaction=True)
    for text in damaged:
        pipe.rpush(waiting, text)
    pipe.rpush(waiting, json.dumps({"id": "good", "action": "load", "model": "small"}))
    pipe.execute()
    wait_for(lambda: models.log == ["+small"])


@pytest.mark.parametrize(
    ("model", "error_code", "details"),
    [
        ("broken", "seat.unavailable", {"model": "broken", "fix": "ask for another"}),
        ("faulty", "seat.error", {"reason": "RuntimeError"}),
    ],
)
def test_a_failed_load_is_reported_with_its_error(
    models: CommandedModels, model: str, error_code: str, details: dict[str, str]
):
    code, output = run("load", "cpu", model, "--json")
    error = json.loads(output)["error"]
    assert (code, error["code"]) == (2, error_code)
    assert details.items() <= error["details"].items()
    assert models.log == []


def test_a_load_does_not_hold_up_other_commands(models: CommandedModels, client: Client):
    slow = model_commands.send_command(client.redis, client.keys, SEAT, "load", "slow")
    wait_for(lambda: model_commands.read_answer(client.redis, client.keys, slow).state == "running", 10)
    assert run("unload", "cpu", "small")[0] == 0
    assert model_commands.read_answer(client.redis, client.keys, slow).state == "running"
    models.go.set()
    wait_for(lambda: model_commands.read_answer(client.redis, client.keys, slow).state == "done", 10)


def test_a_seat_that_reads_no_commands_is_told(client: Client, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(load_command, "READ_SECONDS", 0.3)
    code, output = run("load", "cpu", "small", "--json")
    assert (code, json.loads(output)["error"]["code"]) == (124, "job.wait_timeout")


def test_commands_expire_and_are_bounded(client: Client):
    for number in range(model_commands.MAX_COMMANDS + 5):
        model_commands.send_command(client.redis, client.keys, SEAT, "load", str(number))
    name = client.keys("model_commands", SEAT)
    assert 0 < client.redis.ttl(name) <= model_commands.WAIT_SECONDS
    taken = list(model_commands.take_commands(client.redis, client.keys, SEAT))
    last = range(5, model_commands.MAX_COMMANDS + 5)
    assert [each.model for each in taken] == [str(number) for number in last]
    assert not client.redis.exists(name)
