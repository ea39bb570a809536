"""The proxy that chaos puts between a program and its server."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from tests.chaos.proxy import HOST, Proxy
from tests.waiting import wait_for


class Echo:
    """A server that sends back what it gets."""

    def __init__(self) -> None:
        self.listener = socket.create_server((HOST, 0))
        self.address: tuple[str, int] = self.listener.getsockname()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                caller, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(caller,), daemon=True).start()

    def _serve(self, caller: socket.socket) -> None:
        with caller:
            try:
                while data := caller.recv(65536):
                    caller.sendall(data)
            except OSError:
                return


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    echo = Echo()
    with Proxy(echo.address) as proxy:
        yield proxy
    echo.listener.shutdown(socket.SHUT_RDWR)
    echo.listener.close()


def dial(proxy: Proxy) -> socket.socket:
    return socket.create_connection((HOST, proxy.port), timeout=5)


def ask(caller: socket.socket, text: bytes = b"hello") -> bytes:
    caller.sendall(text)
    received = b""
    while len(received) < len(text):
        received += caller.recv(65536)
    return received


def silent(caller: socket.socket) -> bool:
    caller.settimeout(0.3)
    try:
        return caller.recv(1) is None
    except TimeoutError:
        return True
    finally:
        caller.settimeout(5)


def test_data_is_forwarded_in_both_directions(proxy: Proxy) -> None:
    much = bytes(range(256)) * 4096
    with dial(proxy) as caller:
        sender = threading.Thread(target=caller.sendall, args=(much,))
        sender.start()
        received = b""
        while len(received) < len(much):
            received += caller.recv(65536)
        sender.join()
    assert received == much
    wait_for(lambda: proxy.connections == 0)


def test_a_cut_closes_every_connection_and_new_ones_are_served(proxy: Proxy) -> None:
    with dial(proxy) as one, dial(proxy) as two:
        assert ask(one) == ask(two) == b"hello"
        assert proxy.cut() == 2
        assert one.recv(1) == b""
        assert two.recv(1) == b""
    with dial(proxy) as caller:
        assert ask(caller) == b"hello"
        proxy.cut(reset=True)
        with pytest.raises(ConnectionResetError):
            caller.recv(1)
    wait_for(lambda: proxy.connections == 0)


def test_a_black_hole_delivers_nothing_and_closes_nothing(proxy: Proxy) -> None:
    with dial(proxy) as before:
        assert ask(before) == b"hello"
        proxy.blackhole(True)
        before.sendall(b"lost")
        with dial(proxy) as during:
            during.sendall(b"lost too")
            assert silent(before)
            assert silent(during)
            proxy.blackhole(False)
            for caller in before, during:
                with pytest.raises(ConnectionResetError):
                    caller.recv(1)
    with dial(proxy) as after:
        assert ask(after) == b"hello"


def test_a_short_black_hole_only_delays(proxy: Proxy) -> None:
    with dial(proxy) as before:
        assert ask(before) == b"hello"
        proxy.blackhole(True)
        before.sendall(b"late")
        assert silent(before)
        proxy.blackhole(False, forget=False)
        assert before.recv(10) == b"late"


def test_a_black_hole_buffers_nothing(proxy: Proxy) -> None:
    with dial(proxy) as caller:
        assert ask(caller) == b"hello"
        proxy.blackhole(True)
        caller.settimeout(0.3)
        with pytest.raises(TimeoutError):  # the kernel's buffers and the proxy's are full
            caller.sendall(bytes(1 << 27))
        proxy.cut()
    wait_for(lambda: proxy.connections == 0)


def test_a_caller_is_refused_if_the_target_does_not_listen(proxy: Proxy) -> None:
    with socket.create_server((HOST, 0)) as free:
        unused_address = free.getsockname()
    proxy.address = unused_address
    with pytest.raises(ConnectionResetError), dial(proxy) as caller:
        caller.recv(1)


def test_data_may_be_delayed_and_close_is_repeatable(proxy: Proxy) -> None:
    proxy.delay = 0.05
    with dial(proxy) as caller:
        assert ask(caller) == b"hello"
    proxy.close()
    proxy.close()
    with pytest.raises(ConnectionRefusedError):
        dial(proxy)
