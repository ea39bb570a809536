"""Command-line clients at every kind of seat, each set up as its page in docs/how-to/agent/clients says.

A session runs a command by a tool and uses what it printed, and then goes on. The endpoint's requests are
counted: a client that repeats itself fails.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.compatibility.matrix import Matrix
from tests.compatibility.results import SEATS, WORKED, Refused
from tests.compatibility.seats import Seat, run_seat
from tests.real_programs.command_line import CLIENTS, COUNTED, Client, ClientError
from tests.real_programs.page_blocks import read_aliases
from workers.supervisor.embedded_server import EmbeddedServer

pytestmark = [pytest.mark.clis, pytest.mark.timeout(900)]

WORDS = "so it goes on"
EDIT = f"count.txt\n```\n{COUNTED}\n```\n"
"""An answer by which Aider writes a file."""

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module", params=list(SEATS))
def seat(
    request: pytest.FixtureRequest, server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Seat]:
    """A seat of each kind in turn, with the models of the pages."""
    yield from run_seat(request.param, server, tmp_path_factory.mktemp("home"), read_aliases())


@pytest.fixture(params=CLIENTS, ids=lambda client: client.name)
def client(request: pytest.FixtureRequest, seat: Seat, tmp_path: Path) -> Client:
    made: Client = request.param(seat, tmp_path)
    return made


@contextmanager
def state(matrix: Matrix, client: Client, *features: str) -> Iterator[None]:
    """State that features worked, if the block ends, or that they were refused by a field."""
    outcome: str | Refused = WORKED
    try:
        yield
    except ClientError as error:
        if not error.refused:
            raise
        outcome = Refused(error.refused)
    for feature in features:
        matrix.state(client.name, feature, client.seat.kind, outcome)


@contextmanager
def count_requests(seat: Seat, expected: int) -> Iterator[None]:
    """Check that a block leads to this many requests at the endpoint."""
    before = len(seat.requests)
    yield
    paths = [request["path"] for request in seat.requests[before:]]
    assert len(paths) == (0 if seat.is_local else expected), paths


def make_call(client: Client) -> str:
    """Return a prompt for which the model calls the client's tool. Some clients say more before it."""
    return f"Count them.\nCALL {client.tool} {json.dumps(client.arguments)}"


def test_a_session(matrix: Matrix, client: Client) -> None:
    seat = client.seat
    features = ["streamed answer", *(["tool loop"] if client.tool else [])]
    if seat.is_local and not client.tools_always:
        run_local_session(matrix, client)
        return
    if client.resumes:
        features.append("several turns")
    with state(matrix, client, *features):
        if client.tool:
            with count_requests(seat, 2 + client.small_requests):
                answer = client.ask(make_call(client))
            assert COUNTED in answer
            parsed = seat.server.parsed if seat.server else []
            turns = [turn for sent in parsed for turn in sent.turns]
            assert COUNTED in [result.text for turn in turns for result in turn.results][-1]
        else:
            with count_requests(seat, 1 + client.small_requests):
                client.ask(EDIT)
            assert (client.work / "count.txt").read_text() == f"{COUNTED}\n"
        assert seat.server is not None
        assert any(sent.stream for sent in seat.server.parsed)
        if client.resumes:
            with count_requests(seat, 1):
                assert WORDS in client.ask(WORDS, resume=True)
            said = [turn.text for turn in seat.sent.turns if turn.role == "assistant"]
            assert any(COUNTED in text for text in said), said


def run_local_session(matrix: Matrix, client: Client) -> None:
    """Run a session of a client that works without tools too, at the local model, which takes none."""
    with state(matrix, client, "streamed answer", *(["several turns"] if client.resumes else [])):
        assert client.ask(WORDS).strip()
        assert not client.resumes or client.ask(WORDS, resume=True).strip()
    if client.tool:
        with state(matrix, client, "tool loop"):
            client.ask(make_call(client))


def test_structured_output(matrix: Matrix, client: Client) -> None:
    if not client.has_schemas:
        pytest.skip(f"{client.name} has no structured output")
    prompt = (
        'Where?\nCALL StructuredOutput {"city": "Bern"}'
        if client.name == "Claude Code"
        else '{"city": "Bern"}'
    )
    with state(matrix, client, "structured output"):
        answer = client.ask(prompt, schema=SCHEMA)
        assert '"city"' in answer
        assert client.seat.is_local or '"Bern"' in answer
