"""`gridq load` and `gridq unload`: sent by the command line, carried out by the seat's worker."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from gridq.cli import app
from gridq.cli.commands import load as load_command
from gridq.client import Client
from gridq.errors import SeatUnavailable
from gridq.profiles.profile import StageContext
from gridq.seats import model_commands
from tests.conftest import GridEnv
from tests.unit.seats.live_seats import add_live_seat, open_client
from tests.waiting import wait_for
from workers.process.model_commands import ModelCommands
from workers.profiles.gpu import GpuProfile

SEAT = "m.cpu"


class Models(GpuProfile):
    """A profile that notes its commands; one of its models cannot be loaded, and one loads until `go`."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[str] = []
        self.go = threading.Event()

    def load(self, model: str, context: StageContext) -> None:
        if model == "slow":
            self.go.wait(30)
        if model == "broken":
            raise SeatUnavailable("no such model", {"model": model, "fix": "ask for another"})
        if model == "faulty":
            raise RuntimeError("a fault of the profile")
        self.log.append(f"+{model}")

    def unload(self, model: str) -> None:
        self.log.append(f"-{model}")


@pytest.fixture
def client(grid_env: GridEnv) -> Iterator[Client]:
    with open_client(grid_env) as started:
        add_live_seat(started, SEAT, "llm:any", state="ready")
        yield started


@pytest.fixture
def models(client: Client) -> Iterator[Models]:
    profile = Models()
    commands = ModelCommands(client.redis, client.keys, SEAT, profile)
    commands.start()
    yield profile
    profile.go.set()
    commands.stop()


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, [*arguments])
    return result.exit_code, result.stdout


def test_a_model_is_loaded_and_unloaded_on_command(models: Models):
    assert run("load", "cpu", "small") == (0, f"small is loaded at {SEAT}\n")
    code, output = run("unload", SEAT, "small", "--json")
    assert code == 0
    assert json.loads(output) == {"seat": SEAT, "model": "small", "state": "unloaded"}
    assert models.log == ["+small", "-small"]


@pytest.mark.parametrize(
    ("model", "error_code", "details"),
    [
        ("broken", "seat.unavailable", {"model": "broken", "fix": "ask for another"}),
        ("faulty", "seat.error", {"reason": "RuntimeError"}),
    ],
)
def test_a_failed_load_is_reported_with_its_error(
    models: Models, model: str, error_code: str, details: dict[str, str]
):
    code, output = run("load", "cpu", model, "--json")
    error = json.loads(output)["error"]
    assert (code, error["code"]) == (2, error_code)
    assert details.items() <= error["details"].items()
    assert models.log == []


def test_a_load_does_not_hold_up_other_commands(models: Models, client: Client):
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
