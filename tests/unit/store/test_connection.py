"""The connection: what it survives, what it refuses, and what it says then."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from gridq.errors import (
    BrokerError,
    BrokerIsCluster,
    BrokerRefused,
    BrokerTooOld,
    BrokerUnreachable,
    ConfigError,
    GridError,
)
from gridq.store.connection import (
    check_server,
    connect,
    connect_async,
    redact_url,
    shorten_timeouts,
    translate_error,
    translate_errors,
)
from gridq.store.redis_retries import ServerNotReady, TimedRetry
from tests.chaos.proxy import Proxy
from workers.supervisor.embedded_server import EmbeddedServer, find_free_port


class _Variant(EmbeddedServer):
    """A server with further lines of configuration."""

    more = b""

    def _config(self) -> bytes:
        return super()._config() + self.more


def _connection_error(url: str, retry: bool = False) -> GridError:
    with connect(url, retry=retry) as client, pytest.raises(GridError) as caught:
        check_server(client)
    return caught.value


def _converse(peer: socket.socket, reply: bytes) -> None:
    while request := peer.recv(4096):
        peer.sendall(b"+OK\r\n" if b"SETNAME" in request else b"+PONG\r\n" if b"PING" in request else reply)


def _fake_server(reply: bytes) -> tuple[str, threading.Thread]:
    """The URL of a server that answers with `reply`: no old server can be installed beside the new one."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with listener, listener.accept()[0] as peer:
            _converse(peer, reply)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    return f"redis://127.0.0.1:{listener.getsockname()[1]}/0", thread


def _hello(version: str, server: str = "redis", role: str = "master") -> bytes:
    words = ["server", server, "version", version, "mode", "standalone", "role", role]
    return f"*{len(words)}\r\n".encode() + b"".join(f"${len(w)}\r\n{w}\r\n".encode() for w in words)


def test_a_supported_server_passes_the_check(server: EmbeddedServer) -> None:
    with connect(server.url, name="a name") as client:
        check_server(client)
        assert client.client_getname() == "a_name"
        assert client.ping() is True


def test_the_asyncio_client_works_and_its_errors_are_translated(server: EmbeddedServer) -> None:
    async def run() -> None:
        async with connect_async(server.url) as client:
            assert await client.ping()
        wrong = connect_async("redis://:wrong@" + server.url.partition("@")[2])
        try:
            with pytest.raises(redis.AuthenticationError) as caught:
                await wrong.ping()
        finally:
            await wrong.aclose()
        assert isinstance(translate_error(caught.value), BrokerRefused)

    asyncio.run(run())


def test_a_client_without_a_bound_has_as_many_connections_as_it_needs(server: EmbeddedServer) -> None:
    """redis-py's own bound is 100, and a fault for who comes next."""
    with connect(server.url) as client:
        pool = client.connection_pool
        held = [pool.get_connection() for _ in range(120)]
        assert client.ping()
        for connection in held:
            pool.release(connection)

    async def run() -> None:
        async with connect_async(server.url) as client:
            assert len(await asyncio.gather(*(client.blpop(["nothing"], 0.2) for _ in range(120)))) == 120

    asyncio.run(run())


def test_a_bounded_client_waits_for_a_free_connection(server: EmbeddedServer) -> None:
    async def run() -> None:
        async with connect_async(server.url, name="bounded", max_connections=3) as client:
            assert all(await asyncio.gather(*(client.ping() for _ in range(120))))
            clients = [each for each in await client.client_list() if each["name"] == "bounded"]
            assert len(clients) == 3

    asyncio.run(run())


def test_an_unreachable_server_error_has_the_url_and_a_fix() -> None:
    error = _connection_error("redis://:secret@127.0.0.1:1/0")
    assert isinstance(error, BrokerUnreachable)
    assert "redis://127.0.0.1:1/0" in str(error)
    assert "GRIDQ_BROKER_URL" in str(error.fix)
    assert "secret" not in str(error)
    assert "\n" not in str(error)


@pytest.mark.parametrize("login", [":wrong-one@", "", "nobody:x@"])
@pytest.mark.parametrize("retry", [True, False])
def test_wrong_login_is_refused(server: EmbeddedServer, login: str, retry: bool) -> None:
    error = _connection_error(f"redis://{login}127.0.0.1:{server.port}/0", retry)
    assert isinstance(error, BrokerRefused)
    assert "login" in error.message
    assert "wrong-one" not in str(error)


def test_a_command_that_the_acl_withholds_is_refused(server: EmbeddedServer, store: redis.Redis) -> None:
    granted = ["+hello", "+ping", "+client|setname"]
    store.acl_setuser("narrow", enabled=True, passwords=["+pw"], commands=granted, keys=["none"])
    try:
        with connect(f"redis://narrow:pw@127.0.0.1:{server.port}/0") as client:
            check_server(client)
            with pytest.raises(BrokerRefused, match="permit"), translate_errors(server.url):
                client.set("x", 1)
    finally:
        store.acl_deluser("narrow")


def test_read_only_replica_is_refused() -> None:
    with EmbeddedServer() as own, connect(own.url) as client:
        client.replicaof("127.0.0.1", "1")
        error = _connection_error(own.url)
        assert isinstance(error, BrokerRefused)
        assert "replica" in error.message
        with pytest.raises(BrokerRefused, match="replica"), translate_errors(own.url):
            client.set("x", 1)


def test_cluster_is_refused() -> None:
    class Cluster(_Variant):
        more = f"cluster-enabled yes\ncluster-port {find_free_port()}\n".encode()

    with Cluster() as own:
        assert isinstance(_connection_error(own.url), BrokerIsCluster)
        with connect(own.url) as client, pytest.raises(BrokerIsCluster), translate_errors(own.url):
            client.set("x", 1)


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (_hello("6.2.14"), "Redis 6.2.14"),
        (_hello("7.1.0", "valkey"), "Valkey 7.1.0"),
        (b"-ERR unknown command 'HELLO'\r\n", "older than Redis 6"),
    ],
)
def test_old_server_is_refused(reply: bytes, text: str) -> None:
    url, thread = _fake_server(reply)
    error = _connection_error(url)
    thread.join(5)
    assert isinstance(error, BrokerTooOld)
    assert text in error.message
    assert error.expected == "Redis 7.0 or Valkey 7.2, or newer"


@pytest.mark.parametrize(
    "version", [("7.0.0", "redis"), ("10.0.1", "redis"), ("7.2.0", "valkey"), ("9.1.2", "valkey")]
)
def test_versions_are_compared_as_numbers(version: tuple[str, str]) -> None:
    url, thread = _fake_server(_hello(*version))
    with connect(url, retry=False) as client:
        check_server(client)
    thread.join(5)


def test_a_command_outlives_a_restart_of_the_server() -> None:
    with EmbeddedServer(appendonly=True) as own, connect(own.url) as client:
        client.set("kept", "yes")
        client.execute_command("WAITAOF", 1, 0, 2000)
        own.kill()
        replies: list[object] = []
        reader = threading.Thread(target=lambda: replies.append(client.get("kept")))
        reader.start()
        own.start()
        reader.join(20)
        assert replies == [b"yes"]


def test_a_unix_socket_can_be_used() -> None:
    class Unix(_Variant):
        more = b"unixsocket s.sock\nunixsocketperm 700\n"

    with Unix() as own, connect(f"unix://:{own.password}@{own.folder}/s.sock?db=1") as client:
        check_server(client)
        assert client.ping() is True


@pytest.mark.skipif(not shutil.which("openssl"), reason="openssl makes the test's certificate")
def test_rediss_verifies_the_certificate(tmp_path: Path) -> None:
    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    make = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "1",
        "-subj",
        "/CN=localhost",
    ]
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run([*make, *names, "-keyout", key, "-out", cert], check=True, capture_output=True, timeout=60)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(cert, key)
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            with listener.accept()[0] as peer:
                try:
                    with context.wrap_socket(peer, server_side=True) as secure:
                        _converse(secure, _hello("7.2.0"))
                        return
                except OSError:
                    continue

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    with listener:
        url = f"rediss://127.0.0.1:{listener.getsockname()[1]}/0"
        error = _connection_error(url)
        assert isinstance(error, BrokerUnreachable)
        assert "ssl_ca_certs" in str(error.fix)
        with connect(f"{url}?ssl_ca_certs={cert}", retry=False) as client:
            check_server(client)
        thread.join(5)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "http://host/",
        "amqp://:secret@host",
        "redis-host:6379",
        "default:secret@host:6379",
        "redis:/:secret@host/0",
        " redis://:secret@host/0",
        "redis://:secret/more@host:6379/0",
        "redis://:secret?more@host:6379/0",
        "redis://:secret#more@host:6379/0",
        "redis://:1/secret@host:6379/0",
        "redis://:1?secret@host:6379/0",
        "redis://host:99999/0",
        "redis://[::1/0",
        "redis://host/first",
        "redis://host/0?secret=1",
        "redis://host?db=first",
        "unix://",
    ],
)
def test_invalid_server_urls_are_configuration_errors(url: str) -> None:
    with pytest.raises(ConfigError, match="GRIDQ_BROKER_URL") as caught:
        connect(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://:secret@host:6379/0", "redis://host:6379/0"),
        ("rediss://user:s%40cret@host/1?ssl_password=secret", "rediss://user@host/1"),
        ("unix://:secret@/run/s.sock?db=1", "unix:///run/s.sock"),
    ],
)
def test_a_redacted_url_has_no_password(url: str, shown: str) -> None:
    assert redact_url(url) == shown


def test_kombu_errors_are_translated_by_their_cause() -> None:
    from kombu.exceptions import OperationalError

    def fail(cause: Exception) -> BrokerError:
        try:
            raise OperationalError(str(cause)) from cause
        except OperationalError as exc:
            return translate_error(exc, "redis://host/0")

    assert isinstance(fail(redis.AuthenticationError("invalid password")), BrokerRefused)
    assert isinstance(fail(redis.ConnectionError("refused")), BrokerUnreachable)
    assert isinstance(translate_error(redis.ResponseError("WRONGTYPE"), "redis://host/0"), BrokerError)


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="this system has no such option")
def test_unacknowledged_data_is_given_up_within_a_lease(server: EmbeddedServer) -> None:
    with connect(server.url) as client:
        client.ping()
        connection = client.connection_pool.get_connection()
        found = connection._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        client.connection_pool.release(connection)
    assert 0 < found <= 3000


def test_retries_are_limited_by_seconds() -> None:
    """If nothing listens, a client retries as often as fits into the given time."""
    with connect("redis://127.0.0.1:1/0", retry_seconds=0.5) as client, pytest.raises(redis.ConnectionError):
        client.ping()
    tried: list[Exception] = []
    retry = TimedRetry(0.5)
    with pytest.raises(redis.ConnectionError):
        retry.call_with_retry(_refused, tried.append)
    assert len(tried) > 2
    tried.clear()
    with pytest.raises(redis.ConnectionError):
        TimedRetry(0).call_with_retry(_refused, lambda exc, _: tried.append(exc), with_failure_count=True)
    assert len(tried) == 1, "a command is tried twice all the same"


def _refused() -> None:
    raise redis.ConnectionError("refused")


def test_a_client_reconnects_if_its_primary_became_a_replica(tmp_path: Path) -> None:
    """A name, an address or a proxy may lead to the new one: its READONLY makes the client connect anew."""
    with (
        EmbeddedServer(tmp_path / "a", password="shared") as old,
        EmbeddedServer(tmp_path / "b", password="shared") as new,
        Proxy(("127.0.0.1", old.port)) as proxy,
        connect(f"redis://:shared@127.0.0.1:{proxy.port}/0") as client,
        connect(new.url) as there,
    ):
        client.set("where", "old", px=60_000)
        client.replicaof("127.0.0.1", str(new.port))
        proxy.address = ("127.0.0.1", new.port)
        client.set("where", "new", px=60_000)
        assert there.get("where") == b"new"


def test_shortened_timeouts_are_obeyed(tmp_path: Path) -> None:
    with (
        EmbeddedServer(tmp_path / "a", password="shared") as there,
        Proxy(("127.0.0.1", there.port)) as proxy,
        connect(f"redis://:shared@127.0.0.1:{proxy.port}/0") as client,
    ):
        client.ping()
        shorten_timeouts(client, 0.2)
        client.ping()
        proxy.blackhole(True)
        back = threading.Timer(5, proxy.blackhole, [False], {"forget": False})  # who waits is answered then
        back.start()
        with pytest.raises(redis.TimeoutError):
            client.ping()
        back.cancel()
        proxy.blackhole(False)
        client.ping()


def test_unreachable_sentinels_are_reported_without_redis_objects() -> None:
    url = "sentinel://127.0.0.1:1,127.0.0.1:2/main"
    with connect(url, retry=False) as client, pytest.raises(BrokerUnreachable) as caught:
        check_server(client)
    assert "main" in caught.value.details["reason"]
    assert "<" not in str(caught.value)


@pytest.mark.parametrize(
    ("set_up", "code", "text"),
    [
        ({"min-replicas-to-write": "1"}, "NOREPLICAS", "has too few replicas"),
        ({"busy-reply-threshold": "10"}, "BUSY", "is busy with a script"),
    ],
)
def test_a_server_that_is_not_ready_counts_as_away(
    tmp_path: Path, set_up: dict[str, str], code: str, text: str
) -> None:
    """Both for the client of a thread and for that of asyncio, and inside of a transaction."""

    async def write_async(url: str) -> None:
        client = connect_async(url, retry=False)
        try:
            await client.set("x", 1)
        finally:
            await client.aclose()

    def write_in_transaction(client: redis.Redis) -> None:
        pipe = client.pipeline(transaction=True)
        pipe.set("x", 1)
        pipe.execute()

    with EmbeddedServer(tmp_path / "data") as server, connect(server.url, retry=False) as client:
        for name, value in set_up.items():
            client.config_set(name, value)
        busy = threading.Thread(target=_occupy, args=(server.url,))
        if code == "BUSY":
            busy.start()
            time.sleep(0.1)
        calls: list[Callable[[], object]] = [
            lambda: client.set("x", 1),
            lambda: write_in_transaction(client),
            lambda: asyncio.run(write_async(server.url)),
        ]
        for call in calls:
            with pytest.raises(ServerNotReady) as caught:
                call()
            assert caught.value.status_code == code
            error = translate_error(caught.value, server.url)
            assert isinstance(error, BrokerUnreachable)
            assert text in str(error)
            assert "fix" in error.details
        if code == "BUSY":
            client.script_kill()
            busy.join()


def _occupy(url: str) -> None:
    with connect(url, retry=False, timeout=30) as client, pytest.raises(redis.ResponseError, match="killed"):
        client.eval("while true do end", 0)


def test_a_command_outlives_a_busy_server(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path / "data") as server, connect(server.url) as client:
        client.config_set("busy-reply-threshold", 10)
        busy = threading.Thread(target=_occupy, args=(server.url,))
        busy.start()
        time.sleep(0.1)
        kill = threading.Timer(1, connect(server.url).script_kill)
        kill.start()
        assert client.set("x", 1)
        busy.join()
        kill.join()
