"""A server that reads its data for as long as a test wants."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from redis.exceptions import BusyLoadingError, ConnectionError

from gridq.store.connection import connect
from tests.waiting import wait_for
from workers.supervisor.embedded_server import HOST, EmbeddedServer, find_server_program

WRITES = 200_000
DELAY = 10
"""µs that it sleeps before each write that it reads, and some 60 more that the system makes of it. After
1,024 of them it looks at what it is asked; where nobody hurries it, it reads for a quarter of a minute."""

_WRITE = "for number = 1, ARGV[1] do redis.call('SET', 'x', number) end redis.call('DEL', 'x')"


class SlowServer(EmbeddedServer):
    """Has data, and can be started anew so that it reads them slowly."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, appendonly=True, fsync="always")
        self.delay = 0

    @property
    def narrow_url(self) -> str:
        """Its URL for a user who may not ask it by INFO."""
        return f"redis://narrow:narrow@{HOST}:{self.port}/0"

    def fill(self) -> Self:
        """Give it something to read."""
        with connect(self.url) as client:
            for _ in range(10):
                client.eval(_WRITE, 0, str(WRITES // 10))
        return self

    def load_slowly(self) -> None:
        """Start it, anew where it runs, and return while it reads."""
        self.kill()
        self.delay = DELAY
        self._spawn(find_server_program())
        self.delay = 0
        wait_for(self._reads)

    def _reads(self) -> bool:
        with connect(self.url, retry=False) as client:
            try:
                client.ping()
            except BusyLoadingError:
                return True
            except ConnectionError:
                return False
        raise AssertionError("it has read all of it already")

    def hurry(self) -> None:
        """Let it read the rest at once."""
        with connect(self.url) as client:
            client.config_set("key-load-delay", 0)

    def _config(self) -> bytes:
        more = f"key-load-delay {self.delay}\nuser narrow on >narrow ~* &* +@all -info\n"
        return super()._config() + more.encode()
