"""A real llama-server, started by hand, becomes a seat of a real grid: adopted, used, lost, found again."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests import llama_server
from tests.acceptance.homes import HomeFolder
from tests.fakes.engine_servers import FakeModel, FakeVllm
from tests.small_model import NEEDS_SMALL_MODEL
from tests.waiting import wait_for
from workers.profiles.gpu.running_engines import finding
from workers.profiles.gpu.running_engines.engine_api import EngineApi
from workers.supervisor.embedded_server import find_free_port

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    NEEDS_SMALL_MODEL,
]


@pytest.fixture
def port() -> int:
    return find_free_port()


@pytest.fixture
def grid(tmp_path: Path, port: int) -> Iterator[HomeFolder]:
    table = "[gpu]\ncpu = false\ngpus = false\n"
    table += f'[[gpu.engines]]\nurl = "http://127.0.0.1:{port}"\nname = "box"\n'
    home = HomeFolder(tmp_path, table)
    home.configure('profiles = ["gpu"]\ndrain = 1\nadmission_wait = 1\n')
    try:
        yield home
    finally:
        home.end()


def seat(grid: HomeFolder) -> dict[str, Any]:
    return next((each for each in grid.json("workers") if each["worker"].startswith("box@")), {})


def ask(client: openai.OpenAI, model: str, text: str = "Say hello.") -> openai.types.chat.ChatCompletion:
    return client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": text}], max_tokens=6
    )


def test_a_running_llama_server_is_a_seat_until_it_ends_and_again_when_it_returns(
    grid: HomeFolder, port: int
) -> None:
    with llama_server.llama_server(port, "smol", "512", "2"):
        probed = grid.json("probe")
        [found] = [each for each in probed["seats"] if each["name"] == "box"]
        assert (found["concurrency"], found["queues"]) == (2, ["llm:smol", "llm:any"])
        assert found["capability"]["models"][0]["context"] == 512
        grid.start("up", "--no-flower")
        url = grid.ready()["gateway"]["url"]
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120)
        with contextlib.closing(EngineApi(url)) as own, pytest.raises(finding.OwnGateway):
            finding.identify(own, is_named=True)

        answer = ask(client, "smol")
        assert answer.choices[0].message.content
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 6
        pieces = list(
            client.chat.completions.create(
                model="any",
                messages=[{"role": "user", "content": "Count."}],
                max_tokens=6,
                stream=True,
                stream_options={"include_usage": True},
            )
        )
        assert "".join(each.choices[0].delta.content or "" for each in pieces if each.choices)
        assert pieces[-1].usage is not None
        with pytest.raises(openai.BadRequestError) as long:
            ask(client, "smol", "word " * 900)
        assert long.value.code == "context_length_exceeded"
        assert "512" in str(long.value)
        assert "llm:smol" in wait_for(lambda: seat(grid).get("warm"))

    ended = wait_for(lambda: seat(grid), true=lambda each: each.get("state") == "unreachable")
    assert str(port) in ended["reason"]
    with pytest.raises(openai.APIStatusError) as refused:
        ask(client, "smol")
    assert refused.value.status_code == 503

    with llama_server.llama_server(port, "other", "512", "2"):
        wait_for(lambda: seat(grid), true=lambda each: each.get("queues") == ["llm:other", "llm:any"])
        assert ask(client, "other").choices[0].message.content
        assert "smol" not in {model.id for model in client.models.list()}
        with pytest.raises(openai.APIStatusError) as gone:
            ask(client, "smol")
        assert gone.value.status_code in {404, 503}


def test_a_handoff_file_brings_a_seat_and_takes_it_away(tmp_path: Path) -> None:
    """The engine is a small one that speaks vLLM's API: what is tested is the file."""
    grid = HomeFolder(tmp_path, "[gpu]\ncpu = false\ngpus = false\n")
    grid.configure('profiles = ["gpu"]\ndrain = 1\nadmission_wait = 1\n')

    def seats() -> dict[str, list[str]]:
        return {each["worker"].partition("@")[0]: each["queues"] for each in grid.json("workers")}

    try:
        with FakeVllm(FakeModel("org/m")) as engine:
            grid.start("up", "--no-flower", "--no-gateway")
            grid.ready()
            folder = grid.path / ".runtime" / "engines"
            wait_for(folder.is_dir)
            (folder / "broken.json").write_text("{")
            wait_for(lambda: "broken.json" in grid.read_log())
            half = folder / "pool-0.json.part"
            half.write_text(json.dumps({"url": engine.url, "slots": 2}))
            half.rename(folder / "pool-0.json")
            wait_for(seats, true=lambda found: "llm:any" in found.get("pool-0", ()))
            (folder / "pool-0.json").unlink()
            wait_for(seats, true=lambda found: "pool-0" not in found)
            assert grid.read_log().count("broken.json") == 1
    finally:
        grid.end()


def test_a_seat_starts_its_engine_and_the_engine_ends_with_it(tmp_path: Path) -> None:
    command = json.dumps([sys.executable, "-m", "tests.llama_server", "{port}", "smol", "512", "2"])
    table = f'[[gpu.engines]]\nname = "box"\ncommand = {command}\nconcurrency = 2\n'
    grid = HomeFolder(tmp_path, f"[gpu]\ncpu = false\ngpus = false\n{table}")
    grid.configure('profiles = ["gpu"]\ndrain = 1\n')
    engines = re.compile(r"tests\.llama_server \d+ smol")

    def running() -> list[str]:
        return [line for line in grid.processes() if engines.search(line) and "launcher" not in line]

    try:
        grid.start("up", "--no-flower")
        url = grid.ready()["gateway"]["url"]
        wait_for(lambda: seat(grid), 90, true=lambda each: each.get("state") == "ready")
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=120)
        assert ask(client, "smol").choices[0].message.content
        [before] = running()
        worker = grid.part("box")["pid"]
        os.kill(worker, signal.SIGKILL)
        grid.restarted("box", worker)
        wait_for(lambda: running() and running() != [before], 90)  # the old one has ended, a new one runs
        assert len(running()) == 1
    finally:
        grid.end()
    assert running() == []
