"""Open WebUI at a gateway, set up as its page says: its server runs, and gets the requests of a browser."""

from __future__ import annotations

import json
import os
import re
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from socket import socket
from typing import Any

import httpx
import pytest

from tests.compatibility.matrix import Matrix, read_refused_name
from tests.compatibility.results import SEATS, WORKED, Refused
from tests.compatibility.seats import Seat, run_seat
from tests.real_programs.installing import install_open_webui
from tests.real_programs.page_blocks import PAGES
from tests.waiting import wait_for
from workers.supervisor.embedded_server import EmbeddedServer

pytestmark = [pytest.mark.clis, pytest.mark.timeout(900)]

CLIENT = "Open WebUI"
WORDS = "so it goes on"
START_SECONDS = 180.0
"""How long the server may take to start: on a busy machine its imports and its new database take a minute."""

QUIET = {
    "OFFLINE_MODE": "true",
    "HF_HUB_OFFLINE": "1",
    "ENABLE_VERSION_UPDATE_CHECK": "false",
    "DO_NOT_TRACK": "true",
    "SCARF_NO_ANALYTICS": "true",
    "ANONYMIZED_TELEMETRY": "false",
    "WEBUI_AUTH": "false",
    "WEBUI_SECRET_KEY": "of-a-test",
    "USE_SLIM_DOCKER": "true",
}
"""Variables of the tests: nothing but the gateway is called, and nobody must log in."""


def read_variables() -> dict[str, str]:
    """Return the variables that the page exports."""
    return dict(re.findall(r"^export (\w+)=(\S+)$", (PAGES / "open-webui.md").read_text("utf-8"), re.M))


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of Open WebUI that is logged in. The server starts once, for all kinds of seats."""
    program, folder = install_open_webui(), tmp_path_factory.mktemp("open-webui")
    with closing(socket()) as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "DATA_DIR": str(folder),
        **read_variables(),
        **QUIET,
    }
    argv: list[str | Path] = [program, "serve", "--host", "127.0.0.1", "--port", str(port)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(argv, cwd=folder, env=env, stdout=log, stderr=log)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=120) as client:
            wait_for(lambda: process.poll() is not None or is_up(client), START_SECONDS)
            assert process.poll() is None, (folder / "log").read_text()[-3000:]
            login = client.post("/api/v1/auths/signin", json={"email": "", "password": ""})
            client.headers["authorization"] = f"Bearer {login.json()['token']}"
            yield client
    finally:
        process.kill()
        process.wait(30)


def is_up(client: httpx.Client) -> bool:
    try:
        return client.get("/health", timeout=2).status_code == 200
    except httpx.TransportError:
        return False


@pytest.fixture(scope="module", params=list(SEATS))
def seat(
    request: pytest.FixtureRequest, server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Seat]:
    """Each kind of seat in turn."""
    yield from run_seat(request.param, server, tmp_path_factory.mktemp("home"))


@pytest.fixture
def chat(browser: httpx.Client, seat: Seat) -> httpx.Client:
    """The browser, with the gateway of the seat as Open WebUI's only connection."""
    settings: dict[str, Any] = {
        "ENABLE_OPENAI_API": True,
        "OPENAI_API_BASE_URLS": [f"{seat.url}/v1"],
        "OPENAI_API_KEYS": [seat.key],
        "OPENAI_API_CONFIGS": {},
    }
    browser.post("/openai/config/update", json=settings).raise_for_status()
    listed = browser.get("/api/models", params={"refresh": "true"}).raise_for_status().json()["data"]
    assert seat.model in [model["id"] for model in listed]
    return browser


def ask(seat: Seat, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": WORDS}]
    return {"model": seat.model, "messages": messages, "max_tokens": 60, **fields}


def read_text(chunks: list[dict[str, Any]]) -> str:
    return "".join(
        choice["delta"].get("content") or "" for chunk in chunks for choice in chunk.get("choices", ())
    )


def test_the_page_names_the_gateway() -> None:
    assert read_variables()["OPENAI_API_BASE_URL"] == "http://127.0.0.1:8080/v1"


def test_chats(matrix: Matrix, seat: Seat, chat: httpx.Client) -> None:
    answer = chat.post("/api/chat/completions", json=ask(seat, stream=False)).raise_for_status().json()
    text = answer["choices"][0]["message"]["content"]
    assert answer["usage"]["total_tokens"] > 0
    with chat.stream("POST", "/api/chat/completions", json=ask(seat, stream=True)) as reply:
        assert reply.status_code == 200, reply.read()
        data = [line.removeprefix("data: ") for line in reply.iter_lines() if line.startswith("data: ")]
    assert data[-1] == "[DONE]"
    streamed = read_text([json.loads(each) for each in data[:-1]])
    assert text
    assert streamed
    if not seat.is_local:
        assert text.strip() == streamed.strip() == WORDS
        assert seat.sent.system == "Be brief."
        assert seat.sent.stream
    for feature in ("plain answer", "streamed answer", "system text", "usage", "listed models"):
        matrix.state(CLIENT, feature, seat.kind, WORKED)


def test_a_chat_of_the_page_with_its_background_tasks(seat: Seat, chat: httpx.Client) -> None:
    """Open WebUI keeps a browser's chat, and asks the model for a title, for tags and further questions."""
    if seat.is_local:
        pytest.skip("tasks ask for JSON in words, which the small model does not give")
    question, answer = str(uuid.uuid4()), str(uuid.uuid4())
    message = {"id": question, "parentId": None, "childrenIds": [answer], "role": "user", "content": WORDS}
    empty = {"id": answer, "parentId": question, "childrenIds": [], "role": "assistant", "content": ""}
    history = {"messages": {question: message, answer: empty}, "currentId": answer}
    kept = {"title": "New Chat", "models": [seat.model], "history": history, "messages": [message, empty]}
    made = chat.post("/api/v1/chats/new", json={"chat": kept}).raise_for_status().json()["id"]
    tasks = {"title_generation": True, "tags_generation": True, "follow_up_generation": True}
    before = len(seat.requests)
    body = ask(
        seat, stream=True, chat_id=made, id=answer, session_id="of-a-test", parent_id=question,
        user_message=message, background_tasks=tasks,
    )  # fmt: skip
    chat.post("/api/chat/completions", json=body).raise_for_status()

    def read_answer() -> str:
        found = chat.get(f"/api/v1/chats/{made}").json()["chat"]["history"]["messages"][answer]
        return str(found["content"]) if found.get("done") else ""

    assert wait_for(read_answer, 60).strip() == WORDS
    wait_for(lambda: len(seat.requests) >= before + 4, 60)


def test_tools_of_the_model(matrix: Matrix, seat: Seat, chat: httpx.Client) -> None:
    """A chat with the field `tools`, as Open WebUI sends it for its native mode of function calls."""
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    tool = {"type": "function", "function": {"name": "weather", "description": "d", "parameters": parameters}}
    body = ask(seat, stream=False, tools=[tool])
    body["messages"][-1]["content"] = "What is the weather in Bern?"
    reply = chat.post("/api/chat/completions", json=body)
    if reply.is_error:
        matrix.state(
            CLIENT, "tool call", seat.kind, Refused(read_refused_name(reply.status_code, reply.json()))
        )
        return
    message = reply.json()["choices"][0]["message"]
    if not seat.is_local:
        assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"city": "Bern"}
    matrix.state(CLIENT, "tool call", seat.kind, WORKED)


def test_embeddings(matrix: Matrix, seat: Seat, chat: httpx.Client) -> None:
    reply = chat.post("/api/embeddings", json={"model": seat.embedder, "input": "Bern"})
    if reply.is_error:
        name = read_refused_name(reply.status_code, reply.json())
        matrix.state(CLIENT, "embeddings of text", seat.kind, Refused(name))
        return
    assert len(reply.json()["data"][0]["embedding"]) > 1
    matrix.state(CLIENT, "embeddings of text", seat.kind, WORKED)
