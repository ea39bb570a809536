"""Run a primary, a replica and three sentinels as processes of the embedded server's program."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import redis

from workers.supervisor.embedded_server import EmbeddedServer, find_free_port, find_server_program

NAME = "main"
PASSWORD = "servers"
ASKING = "sentinels"


class Node(EmbeddedServer):
    """A server that can be a replica of another."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, password=PASSWORD, appendonly=True)
        self.of: Node | None = None

    def _config(self) -> bytes:
        lines = f"masterauth {PASSWORD}\nrepl-diskless-sync-delay 0\n"
        lines += f"replicaof 127.0.0.1 {self.of.port}\n" if self.of is not None else ""
        return super()._config() + lines.encode()

    def ask(self, *command: str) -> object:
        with redis.Redis(port=self.port, password=PASSWORD, socket_timeout=5) as client:
            return client.execute_command(*command)

    def settle(self) -> None:
        """Wait until the replica has everything written so far."""
        with redis.Redis(port=self.port, password=PASSWORD, socket_timeout=70) as client:
            client.set("settled", 1, px=60_000)  # WAIT is about what its own connection wrote
            assert client.wait(1, 60_000) == 1

    @property
    def is_primary(self) -> bool:
        return bool(self.ask("ROLE")[0] == b"master")  # type: ignore[index]


class Watched:
    """Two nodes, watched by sentinels. At the start, `nodes[0]` is the primary."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.nodes = [Node(folder / "a"), Node(folder / "b")]
        self.ports: list[int] = []
        self._sentinels: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        try:
            self.nodes[0].start()
            self.nodes[1].of = self.nodes[0]
            self.nodes[1].start()
            self.until(lambda: self._in_step() == 1, "the replica follows")
            for number in range(3):
                self._watch(self.folder / f"sentinel{number}")
            self.until(lambda: all(map(self._ready, self.ports)), "the sentinels know one another")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for child in self._sentinels:
            child.kill()
            child.wait()
        for node in self.nodes:
            node.stop()

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        return f"sentinel://:{PASSWORD}@{hosts}/{NAME}?sentinel_password={ASKING}"

    @property
    def primary(self) -> Node:
        """The node that all sentinels agree is the primary."""

        def agreed() -> list[Node]:
            found = {self._primary_of(port) for port in self.ports}
            return [node for node in self.nodes if {node.port} == found and node.pid and node.is_primary]

        return self.until(agreed, "the sentinels agree")[0]

    def _in_step(self) -> int:
        """Return the number of replicas of the first node that are online."""
        found: dict[str, Any] = self.nodes[0].ask("INFO", "replication")  # type: ignore[assignment]
        return [replica["state"] for name, replica in found.items() if isinstance(replica, dict)].count(
            "online"
        )

    def fail_over(self) -> None:
        """Make the replica the primary, as an operator would. The old primary keeps running."""
        before = self.primary
        self.until(lambda: self._ask(self.ports[0], "FAILOVER", NAME), "a replica can take over")
        self.until(lambda: self.primary is not before and not before.is_primary, "the primary is demoted")

    def until(self, condition: Callable[[], object], description: str) -> list[Node]:
        end = time.monotonic() + 60
        while True:
            try:
                if found := condition():
                    return found  # type: ignore[return-value]
            except redis.RedisError:
                pass
            assert time.monotonic() < end, f"Timed out waiting until {description}"
            time.sleep(0.05)

    def _watch(self, folder: Path) -> None:
        folder.mkdir()
        port = find_free_port()
        lines = [
            f"port {port}", "bind 127.0.0.1", f"dir {folder}", f"requirepass {ASKING}",
            f"sentinel sentinel-pass {ASKING}",
            f"sentinel monitor {NAME} 127.0.0.1 {self.nodes[0].port} 2",
            f"sentinel auth-pass {NAME} {PASSWORD}",
            f"sentinel down-after-milliseconds {NAME} 1000", f"sentinel failover-timeout {NAME} 5000",
        ]  # fmt: skip
        (folder / "sentinel.conf").write_text("\n".join(lines) + "\n")
        with (folder / "log").open("wb") as log:
            command = [find_server_program(), str(folder / "sentinel.conf"), "--sentinel"]
            self._sentinels.append(subprocess.Popen(command, stdout=log, stderr=log))
        self.ports.append(port)
        # By default they check a server every 10 s, and turn an old primary into a replica 8 s later.
        periods = ("info-period", "500", "publish-period", "200")
        self.until(lambda: self._ask(port, "DEBUG", *periods), "a sentinel answers")

    def _ask(self, port: int, *command: str) -> object:
        with redis.Redis(port=port, password=ASKING, socket_timeout=5) as client:
            return client.execute_command("SENTINEL", *command)

    def _primary_of(self, port: int) -> int:
        return int(self._ask(port, "GET-MASTER-ADDR-BY-NAME", NAME)[1])  # type: ignore[index]

    def _ready(self, port: int) -> bool:
        with redis.Redis(port=port, password=ASKING, socket_timeout=5) as client:
            state = client.sentinel_master(NAME)
        return bool(state["num-other-sentinels"] == 2 and state["num-slaves"] == 1)
