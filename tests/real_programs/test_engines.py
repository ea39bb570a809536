"""Real engines as seats of a real grid: probed, used, loaded, unloaded, killed, replaced, wrongly used."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from tests.acceptance.homes import HomeFolder
from tests.fakes.http_server import Handler, LocalServer
from tests.real_programs import engines
from tests.waiting import wait_for
from workers.supervisor.embedded_server import find_free_port

pytestmark = [pytest.mark.clis, pytest.mark.timeout(600)]

LONG = "word " * 900
"""More than 900 tokens. A request has 256 here."""

HELLO: Any = [{"role": "user", "content": "Say hello."}]
TOO_LONG: Any = [{"role": "user", "content": LONG}]


class EngineGrid:
    """A grid whose only seat is `box`, the engine at `port`, and clients of its gateway."""

    def __init__(self, home: HomeFolder, port: int) -> None:
        self.home = home
        self.port = port
        home.start("up", "--no-flower")
        wait_for(lambda: home.state("grid").get("ready"), engines.START_SECONDS)
        self.url = home.ready()["gateway"]["url"]
        self.openai = openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0, timeout=120)
        self.anthropic = anthropic.Anthropic(base_url=self.url, api_key="none", max_retries=0, timeout=120)

    def seat(self) -> dict[str, Any]:
        return next((each for each in self.home.json("workers") if each["worker"].startswith("box@")), {})

    def wait_for_state(self, state: str) -> dict[str, Any]:
        return wait_for(self.seat, 60, true=lambda seat: seat.get("state") == state)

    def say(self, model: str, **fields: Any) -> Any:
        fields = {"messages": HELLO, "max_tokens": 6, **fields}
        return self.openai.chat.completions.create(model=model, **fields)

    def say_refused(self, model: str, **fields: Any) -> openai.APIStatusError:
        with pytest.raises(openai.APIStatusError) as caught:
            list(self.say(model, **fields))
        return caught.value


@contextmanager
def grid_of(tmp_path: Path, port: int) -> Iterator[EngineGrid]:
    table = f'[[gpu.engines]]\nurl = "http://127.0.0.1:{port}"\nname = "box"\n'
    table = f"[gpu]\ncpu = false\ngpus = false\n{table}"
    home = HomeFolder(tmp_path, table)
    home.configure('profiles = ["gpu"]\ndrain = 1\nadmission_wait = 1\n')
    try:
        yield EngineGrid(home, port)
    finally:
        home.end()


class Router:
    """llama-server as a router of the models in a folder."""

    def __init__(self, folder: Path) -> None:
        self.port = find_free_port()
        self.log = folder / "engine.log"
        self.program, self.variables = engines.install_llama_server()

    def run(self, models: Path, *options: str) -> Any:
        command = [self.program, "--models-dir", str(models), "--port", str(self.port), "--no-warmup"]
        command += ["-c", "512", "-np", "2", "-t", "1", *options]
        return engines.running(command, self.variables, self.log, f"http://127.0.0.1:{self.port}/health")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    engines.write_models(folder)
    return folder


@pytest.fixture(scope="module")
def grid(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineGrid]:
    """A grid with a router, for the tests that leave it as it is."""
    folder = tmp_path_factory.mktemp("grid")
    router = Router(folder)
    with ExitStack() as stack:
        stack.enter_context(router.run(models, "--models-preset", str(models / "vectors.ini")))
        yield stack.enter_context(grid_of(folder, router.port))


def test_a_router_is_probed_with_all_its_models(grid: EngineGrid) -> None:
    [found] = [each for each in grid.home.json("probe")["seats"] if each["name"] == "box"]
    models = {each["name"]: each for each in found["capability"]["models"]}
    assert set(models) == {"smol", "second", "strange", "cut", "vectors"}
    assert (models["vectors"]["embeddings"], models["smol"]["embeddings"]) == (True, False)
    assert found["concurrency"] == 2  # by the arguments of its models: none needs to be loaded
    assert "llama-server" in found["note"]


def test_both_apis_answer_at_once_and_as_a_stream(grid: EngineGrid) -> None:
    answer = grid.say("smol")
    assert answer.choices[0].message.content
    assert answer.usage.completion_tokens == 6
    pieces = list(grid.say("smol", stream=True, stream_options={"include_usage": True}))
    assert "".join(each.choices[0].delta.content or "" for each in pieces if each.choices)
    assert pieces[-1].usage.completion_tokens == 6
    message = grid.anthropic.messages.create(model="smol", max_tokens=6, messages=HELLO)
    assert message.content[0].text
    with grid.anthropic.messages.stream(model="smol", max_tokens=6, messages=HELLO) as stream:
        assert "".join(stream.text_stream)


def test_embeddings(grid: EngineGrid) -> None:
    one = grid.openai.embeddings.create(model="vectors", input=["hello", "world"])
    assert [len(each.embedding) for each in one.data] == [576, 576]
    with pytest.raises(openai.APIStatusError) as refused:
        grid.openai.embeddings.create(model="vectors", input=LONG)
    assert (refused.value.status_code, refused.value.code) == (400, "context_length_exceeded")
    assert re.search(r"\b90\d tokens.*\b512\b", refused.value.message)


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_over_the_context_is_refused_at_once_with_both_numbers(
    grid: EngineGrid, stream: bool
) -> None:
    error = grid.say_refused("smol", messages=TOO_LONG, stream=stream)
    assert (error.status_code, error.code) == (400, "context_length_exceeded")
    assert re.search(r"\b9\d\d tokens.*\b256 tokens", error.message)
    with pytest.raises(anthropic.BadRequestError) as refused:
        grid.anthropic.messages.create(model="smol", max_tokens=6, messages=TOO_LONG, stream=stream)
    assert refused.value.body["error"]["code"] == "context_length_exceeded"  # type: ignore[index,call-overload]
    assert re.search(r"\b9\d\d tokens.*\b256 tokens", str(refused.value))


@pytest.mark.parametrize("model", ["strange", "cut"])
def test_a_model_that_cannot_be_loaded_is_its_own_error_and_the_others_go_on(
    grid: EngineGrid, model: str
) -> None:
    error = grid.say_refused(model)
    assert (error.status_code, error.code) == (503, "seat.none_live"), error.message
    assert "cannot load this model" in error.message
    assert grid.seat()["state"] == "ready"
    assert grid.say("smol").choices[0].message.content
    assert grid.say("any").choices[0].message.content


def test_a_model_that_the_engine_does_not_have(grid: EngineGrid) -> None:
    error = grid.say_refused("unknown-model")
    assert (error.status_code, error.code) == (404, "seat.none_live")


def test_models_are_loaded_and_unloaded_on_command(grid: EngineGrid) -> None:
    for model in ("second", "second"):  # the second time it is loaded already
        done = grid.home("load", "box", model)
        assert done.returncode == 0, done.stderr
    wait_for(lambda: "llm:second" in grid.seat().get("warm", ()))
    for _ in range(2):
        done = grid.home("unload", "box", "second")
        assert done.returncode == 0, done.stderr
    wait_for(lambda: "llm:second" not in grid.seat().get("warm", ()))
    failed = grid.home("load", "box", "strange")
    assert failed.returncode != 0
    assert "exit code" in failed.stderr


def test_an_engine_that_is_killed_replaced_and_gone(models: Path, tmp_path: Path) -> None:
    """In mid-stream the client is told; before the first token the stage waits for the engine; another one at
    the same port brings its own models; a program that is no engine is a reason.
    """
    router = Router(tmp_path)
    others = tmp_path / "others"
    others.mkdir()
    (others / "other.gguf").symlink_to(engines.find_model())
    with router.run(models) as engine, grid_of(tmp_path, router.port) as grid:
        pieces = iter(grid.say("smol", stream=True, max_tokens=200))
        next(pieces)
        next(pieces)
        engines.kill(engine)
        with pytest.raises(openai.APIError) as cut:
            list(pieces)
        assert cut.value.code == "stage.stream_cut", cut.value
        answers: list[Any] = []
        waits = {"x-gridq-wait-for-seat": "1"}
        thread = threading.Thread(target=lambda: answers.append(grid.say("smol", extra_headers=waits)))
        thread.start()
        with router.run(models):
            thread.join(60)
            assert answers[0].choices[0].message.content
        assert str(router.port) in grid.wait_for_state("unreachable")["reason"]
        gone = grid.say_refused("smol")
        assert (gone.status_code, gone.code) == (503, "seat.none_live"), gone.message
        with router.run(others):
            wait_for(grid.seat, 60, true=lambda seat: seat.get("queues") == ["llm:other", "llm:any"])
            assert grid.say("other").choices[0].message.content
            assert grid.say_refused("smol").status_code in {404, 503}
        grid.wait_for_state("unreachable")
        with LocalServer(Handler, port=router.port):
            seat = wait_for(grid.seat, 60, true=lambda seat: "does not know" in seat.get("reason", ""))
            assert str(router.port) in seat["reason"]


def test_metrics_and_logs_name_no_prompt(grid: EngineGrid) -> None:
    grid.say("smol", messages=[{"role": "user", "content": "the-secret-word"}])
    assert "model_loaded" in httpx.get(f"{grid.url}/metrics").text
    assert "the-secret-word" not in grid.home.read_log()
    assert "the-secret-word" not in json.dumps(grid.home.json("workers"))
