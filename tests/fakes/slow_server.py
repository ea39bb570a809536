"""A server that loads its data for as long as a test wants."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from redis.exceptions import BusyLoadingError, ConnectionError

from gridq.store.connection import connect
from tests.waiting import wait_for
from workers.supervisor.embedded_server import HOST, EmbeddedServer, find_server_program

WRITES = 200_000
DELAY_MICROSECONDS = 10
"""The pause before each write that it loads, which the system makes some 60 µs longer. The server answers
clients after each 1,024 writes. Without `hurry` it loads for a quarter of a minute."""

_WRITE = "for number = 1, ARGV[1] do redis.call('SET', 'x', number) end redis.call('DEL', 'x')"


class SlowServer(EmbeddedServer):
    """A server with data, which can be restarted so that it loads slowly."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, appendonly=True, fsync="always")
        self.delay = 0

    @property
    def narrow_url(self) -> str:
        """Its URL for a user without permission for INFO."""
        return f"redis://narrow:narrow@{HOST}:{self.port}/0"

    def fill(self) -> Self:
        """Fill it with data."""
        with connect(self.url) as client:
            for _ in range(10):
                client.eval(_WRITE, 0, str(WRITES // 10))
        return self

    def load_slowly(self) -> None:
        """Start or restart it, and return while it loads."""
        self.kill()
        self.delay = DELAY_MICROSECONDS
        self._spawn(find_server_program())
        self.delay = 0
        wait_for(self._loads)

    def _loads(self) -> bool:
        with connect(self.url, retry=False) as client:
            try:
                client.ping()
            except BusyLoadingError:
                return True
            except ConnectionError:
                return False
        raise AssertionError("it has loaded already")

    def hurry(self) -> None:
        """Let it load the rest at once."""
        with connect(self.url) as client:
            client.config_set("key-load-delay", 0)

    def _config(self) -> bytes:
        more = f"key-load-delay {self.delay}\nuser narrow on >narrow ~* &* +@all -info\n"
        return super()._config() + more.encode()
