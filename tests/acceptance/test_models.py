"""A grid whose models come from a hub: pulled by hand and by request, and talked to. The programs and the
small model are real; the hub is a server on this machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.acceptance.homes import HomeFolder
from tests.fakes.hub_server import HubServer
from tests.small_model import NEEDS_SMALL_MODEL
from tests.waiting import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), NEEDS_SMALL_MODEL]

SEATS = """
[gpu]
gpus = false
pulls = true
pull_limit_gb = 1

[[gpu.models]]
name = "lazy"
file = "hf:org/Smol-GGUF"
context = 2048
"""


@pytest.fixture
def home(tmp_path: Path, hub: HubServer) -> Iterator[HomeFolder]:
    found = HomeFolder(tmp_path, SEATS)
    found.configure('profiles = ["gpu"]\ndrain = 1\n')
    found.env |= {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "GRIDQ_GATEWAY_PORT": "0"}
    yield found
    found.end()


MESSAGES = [{"role": "user", "content": "Hi"}]
SMOL = "smollm2-135m-instruct"


def complete(url: str, model: str, timeout: float = 60) -> httpx.Response:
    body: dict[str, Any] = {"model": model, "max_tokens": 4, "messages": MESSAGES}
    return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=timeout)


def leave(url: str, model: str) -> None:
    """Ask, and disconnect before there is an answer."""
    with pytest.raises(httpx.ReadTimeout):
        complete(url, model, timeout=2)


def test_models_by_name(home: HomeFolder, hub: HubServer) -> None:
    hub.pace = 0.1  # minutes for the whole; a hub that is silent for 10 s is asked again
    home.start("up", "--no-flower")
    url = home.ready()["gateway"]["url"]

    # one leaves, the others are told that it is loading
    with ThreadPoolExecutor() as threads:
        leaving = threads.submit(leave, url, "lazy")
        answer = complete(url, "lazy")
        leaving.result()
    assert answer.status_code == 503, answer.text
    error = answer.json()["error"]
    assert error["code"] == "model.loading"
    assert error["loading"]["state"] in ("resolving", "downloading")
    assert 0.0 <= error["loading"]["progress"] < 1.0
    assert int(answer.headers["retry-after"]) >= 1
    hub.pace = 0.0
    wait_for(lambda: complete(url, "lazy").status_code == 200, 120)
    assert len(hub.list_downloads()) == 1

    # a model that is loaded is not removed
    assert home.json("models", "show", "lazy")["loaded"]
    assert "model.in_use" in home("models", "rm", "lazy").stderr

    # a pull by hand: the running grid offers it
    done = home("models", "pull", "hf:org/Smol-GGUF", "--name", "handy", "--context", "1024")
    assert done.returncode == 0, done.stderr
    wait_for(lambda: "llm:handy" in home("models").stdout, 60)
    talk = home("chat", "handy", "--max-tokens", "4", stdin="Hi\nAgain\n")
    assert talk.returncode == 0, talk.stderr
    assert len(talk.stdout.strip().splitlines()) >= 2
    assert home("chat", "nobody", stdin="Hi\n").returncode == 4


def test_a_request_goes_on_to_a_model_that_is_here(home: HomeFolder, hub: HubServer) -> None:
    """The first of its models is being downloaded, or cannot be: the next one answers, of the same seat. The
    download goes on, and then the first one answers.
    """
    hub.pace = 0.1
    seats = SEATS + '\n[[gpu.models]]\nname = "gone"\nfile = "hf:org/Gone-GGUF"\ncontext = 2048\n'
    (home.path / "seats.toml").write_text(seats)
    home.start("up", "--no-flower")
    url = home.ready()["gateway"]["url"]

    def ask(*models: str) -> str:
        """Return the model that answered."""
        body = {"model": models[0], "models": models[1:], "max_tokens": 4, "messages": MESSAGES}
        answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["model"])

    assert ask("lazy", "smollm2") == SMOL
    assert ask("gone", "smollm2") == SMOL
    assert ask("gone", "lazy", "smollm2") == SMOL
    assert len(hub.list_downloads()) == 1, "it goes on, once for all"
    hub.pace = 0.0
    wait_for(lambda: ask("lazy", "smollm2") == "lazy", 120)
