"""A seat with a vendor's program in a whole grid: a real worker, a real gateway, clients of both APIs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import anthropic
import httpx
import openai
import pytest

from tests.acceptance.homes import HomeFolder
from tests.fakes.programs import FakePrograms
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

MODELS = ", ".join(f'{{name = "{name}"}}' for name in ("echo", "slow", "limited"))
SEATS = f'[[llm]]\nname = "mine"\ncli = "claude"\nmodels = [{MODELS}]\n'


@pytest.fixture(scope="module")
def fakes(tmp_path_factory: pytest.TempPathFactory) -> FakePrograms:
    return FakePrograms(tmp_path_factory.mktemp("bin"), "claude", "codex")


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory, fakes: FakePrograms) -> Iterator[HomeFolder]:
    home = HomeFolder(tmp_path_factory.mktemp("grid"), SEATS)
    home.configure('profiles = ["llm"]\ndrain = 1\n')
    home.env = {name: value for name, value in home.env.items() if not name.endswith("_API_KEY")}
    home.env["PATH"] = f"{fakes.folder}:{home.env['PATH']}"
    home.env["ANTHROPIC_API_KEY"] = ""
    try:
        home.start("up", "--no-flower")
        home.ready()
        yield home
    finally:
        home.end()


def url(grid: HomeFolder) -> str:
    return str(grid.state("grid")["gateway"]["url"])


def test_openais_and_anthropics_clients_reach_a_program(grid: HomeFolder, fakes: FakePrograms) -> None:
    with openai.OpenAI(base_url=f"{url(grid)}/v1", api_key="none", max_retries=0) as client:
        chat = client.chat.completions.create(
            model="echo", messages=[{"role": "user", "content": "so it goes"}]
        )
        assert chat.choices[0].message.content == "so it goes "
        stream = client.chat.completions.create(
            model="echo", messages=[{"role": "user", "content": "on and on"}], stream=True
        )
        deltas = [piece.choices[0].delta.content for piece in stream if piece.choices]
        assert "".join(filter(None, deltas)) == "on and on "
        with pytest.raises(openai.BadRequestError, match="stop"):
            client.chat.completions.create(
                model="echo", messages=[{"role": "user", "content": "so"}], stop=["."]
            )
    with anthropic.Anthropic(base_url=url(grid), api_key="none", max_retries=0) as claude:
        message = claude.messages.create(
            model="echo",
            max_tokens=99,
            system="Be brief.",
            messages=[{"role": "user", "content": "so it goes"}],
        )
        assert message.content[0].text == "so it goes "  # type: ignore[union-attr]
        assert message.usage.cache_read_input_tokens == 4
    call = fakes.calls("claude")[-1]
    assert call["files"]["system.md"] == "Be brief."


def test_a_disconnecting_client_ends_the_program(grid: HomeFolder, fakes: FakePrograms) -> None:
    with openai.OpenAI(base_url=f"{url(grid)}/v1", api_key="none", max_retries=0) as client:
        stream = client.chat.completions.create(
            model="slow", messages=[{"role": "user", "content": "so it goes"}], stream=True
        )
        assert next(stream).choices
        stream.close()
    pid = fakes.calls("claude")[-1]["pid"]
    wait_for(lambda: not Path(f"/proc/{pid}").exists())


def test_a_programs_rate_limit_pauses_its_seat(grid: HomeFolder) -> None:
    graph = {"op": "Stage", "id": "llm_complete", "config": {"model": "limited"}}
    with httpx.Client(base_url=url(grid), trust_env=False) as http:
        made = http.post("/jobs", json={"graph": {"root": graph}, "input": "so it goes"})
        assert made.is_success, made.text

        (seat,) = wait_for(lambda: http.get("/workers?state=rate_limited").json())
    assert "rate limited until" in seat["reason"]
    assert seat["until"] > time.time() + 7000


def test_probe_shows_programs_that_could_be_lent(grid: HomeFolder) -> None:
    lines = [line.strip() for line in grid("probe").stdout.splitlines()]
    shown = " ".join(lines)
    assert "Claude Code 2.1.400" in shown
    assert "Found, not lent:" in shown
    at = lines.index('name = "codex"')
    assert (lines[at - 1], lines[at + 1]) == ("[[llm]]", 'cli = "codex"')
