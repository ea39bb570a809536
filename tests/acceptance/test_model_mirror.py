"""Two machines of a grid: one shares the models of its cache, the other has no way to the hub. The programs
and the small model are real; the hub is a server on this machine.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import redis

from tests.acceptance.homes import HomeFolder, port_of
from tests.fakes.hub_server import HubServer
from tests.small_model import NEEDS_SMALL_MODEL
from tests.waiting import wait_for
from workers.supervisor.deployment import RELOAD_SIGNAL

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), NEEDS_SMALL_MODEL]

SHARES = '[gpu]\ngpus = false\ncpu = false\nshare_models = "127.0.0.1:0"\n'
PULLS = """
[gpu]
gpus = false
pulls = true

[[gpu.models]]
name = "lazy"
file = "hf:org/Smol-GGUF"
context = 1024
"""
NOWHERE = "http://127.0.0.1:9"


def make_home(folder: Path, seats: str, hub: str) -> HomeFolder:
    folder.mkdir()
    home = HomeFolder(folder, seats)
    home.configure('profiles = ["gpu"]\ndrain = 1\nheartbeat = 2\n')
    home.env |= {"HF_ENDPOINT": hub, "HF_HOME": str(folder / "hf"), "GRIDQ_GATEWAY_PORT": "0"}
    return home


@pytest.fixture
def sharer(tmp_path: Path, hub: HubServer) -> Iterator[HomeFolder]:
    home = make_home(tmp_path / "sharer", SHARES, hub.url)
    yield home
    home.end()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[HomeFolder]:
    home = make_home(tmp_path / "machine", PULLS, NOWHERE)
    yield home
    home.end()


def test_a_machine_without_internet_gets_its_model_from_the_grid(
    sharer: HomeFolder, machine: HomeFolder, hub: HubServer
) -> None:
    assert sharer("models", "pull", "hf:org/Smol-GGUF").returncode == 0
    sharer.start("up", "--no-flower")
    state = sharer.ready()
    assert "mirror" in [part["name"] for part in state["parts"]]

    # its address, digests and secret are on the server, for three heartbeats
    port = port_of(state)
    password = json.loads((sharer.path / "server/access.json").read_text()).get("password")
    client = redis.Redis(port=port, password=password)
    key = wait_for(lambda: next(client.scan_iter("gq:.models:*"), None))
    assert 0 < client.pttl(key) <= 6000
    offer = json.loads(client.get(key) or "{}")
    assert [each["reference"] for each in offer["models"]] == ["hf:org/Smol-GGUF"]

    # a request pulls the model to the other machine, and is answered there
    (machine.folder / "token").write_text(sharer("token", "create").stdout)
    (machine.folder / "token").chmod(0o600)
    machine.start("join", f"redis://127.0.0.1:{port}/0", "--token", f"@{machine.folder / 'token'}")
    machine.ready("worker")
    url = sharer.ready()["gateway"]["url"]
    body = {"model": "lazy", "max_tokens": 4, "messages": [{"role": "user", "content": "Hi"}]}
    answer = wait_for(
        lambda: (
            found
            if (found := httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)).status_code == 200
            else None
        ),
        120,
    )
    assert answer.json()["choices"]
    assert len(hub.list_downloads()) == 1  # by the sharer alone
    progress = json.loads((machine.path / "pulls/lazy.json").read_text())
    assert progress["source"] == state["machine"]

    # by hand, too: the same cache, so nothing is fetched again
    shown = machine.json("models", "show", "lazy")
    assert shown["access"] == "open"
    assert Path(shown["files"][0]["path"]).is_symlink()

    # a name that nobody pulled stays an error of the hub
    missing = machine("models", "pull", "hf:org/None-GGUF")
    assert missing.returncode != 0
    assert "model.unreachable" in missing.stderr

    # the owner changes their mind: nothing listens any more
    (sharer.path / "seats.toml").write_text(SHARES.replace("share_models", "# share_models"))
    os.kill(sharer.state("grid")["pid"], RELOAD_SIGNAL)
    wait_for(lambda: not client.exists(key))
    wait_for(lambda: "mirror" not in [part["name"] for part in sharer.state("grid")["parts"]])
    with pytest.raises(httpx.ConnectError):
        httpx.get(offer["url"])
    for text in (sharer.read_log(), *(path.read_text() for path in (sharer.path / "logs").iterdir())):
        assert offer["secret"] not in text
