"""Outages of gateways: killed, cut off or invalid ones, and clients that fail over or wait."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from pydantic import SecretStr

from gridq import errors
from gridq.client import BrokerClient, Client
from gridq.client.gateway_client import build_submission
from gridq.limits import api_keys
from gridq.protocol.states import JobState
from tests.builders import stage
from tests.chaos.proxy import Proxy
from tests.gateways import serving
from tests.integration.client.conftest import GatewayProcess, Place
from tests.waiting import wait_for

ECHO = {"root": stage("bench_echo")}
SLEEP = {"root": stage("bench_sleep", ms=60_000)}
MANY = 40
TOKENS = {"root": stage("bench_tokens", n=MANY, ms=50)}

Reach = Callable[..., Client]


class Background(threading.Thread):
    """Runs a call on a thread, and stores its result or error."""

    def __init__(self, way: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self.way = way
        self.found: Any = None
        self.start()

    def run(self) -> None:
        try:
            self.found = self.way()
        except Exception as exc:
            self.found = exc

    def outcome(self) -> Any:
        self.join(60)
        assert not self.is_alive()
        return self.found


@contextmanager
def proxied(place: Place) -> Iterator[tuple[Proxy, str]]:
    """Yield a proxy in front of the gateway, and its URL."""
    port = int(place.url.rpartition(":")[2])
    with Proxy(("127.0.0.1", port)) as proxy:
        yield proxy, f"http://127.0.0.1:{proxy.port}"


def test_reading_and_waiting_continue_at_another_gateway(
    gateways: Callable[[int], list[GatewayProcess]], reach: Reach
) -> None:
    first, second = gateways(2)
    client, other = reach(f"{first.url},{second.url}"), reach(f"{first.url},{second.url}")
    job = client.submit(TOKENS, stream=True)
    waits = Background(lambda: other.result(job, 60))
    read = []
    for piece in client.stream(job):
        read.append(piece.value)
        if len(read) == 5:
            first.kill()
    assert read == [f"token{number} " for number in range(MANY)]
    assert waits.outcome() == client.result(job, 10) == "".join(read)
    assert [row.attempt for row in client.rows(job)] == [1]


def test_reading_and_waiting_survive_an_outage_of_all_gateways(place: Place, reach: Reach) -> None:
    with proxied(place) as (proxy, url):
        client, other = reach(url), reach(url)
        job = client.submit(TOKENS, stream=True)
        reads = Background(lambda: [piece.value for piece in client.stream(job)])
        waits = Background(lambda: other.result(job, 60))
        wait_for(lambda: place.grid.client.redis.xlen(place.grid.client.keys("stream", job)) > 5)
        there, proxy.address = proxy.address, ("127.0.0.1", 1)
        proxy.cut(reset=True)
        wait_for(lambda: place.grid.client.status(job) is JobState.DONE)
        assert reads.is_alive()
        assert waits.is_alive()
        proxy.address = there
        assert reads.outcome() == [f"token{number} " for number in range(MANY)]
        assert waits.outcome() == "".join(reads.outcome())


def test_the_callers_time_out_holds_during_an_outage(place: Place, reach: Reach) -> None:
    with proxied(place) as (proxy, url):
        client = reach(url)
        job = client.submit(SLEEP)
        proxy.address = ("127.0.0.1", 1)
        proxy.cut(reset=True)
        for way in (client.result, client.wait, lambda job, timeout: list(client.stream(job, timeout))):
            with pytest.raises(errors.GatewayUnreachable):
                way(job, 0.5)
        place.grid.client.cancel(job)


def test_a_lost_reply_makes_no_second_job(place: Place, reach: Reach) -> None:
    """The submission arrives but its reply is lost, so it is sent again; it is the same job."""
    with proxied(place) as (proxy, url):
        client = reach(url)
        client.result(client.submit(ECHO, "before"), 30)  # the connection stands
        name = f"once-{secrets.token_hex(4)}"
        proxy.delay = 0.3
        submits = Background(lambda: client.submit(ECHO, "twice", name=name))
        wait_for(lambda: _jobs_named(place, name), poll=0.001)
        proxy.cut(reset=True)  # the gateway has it, and its reply is on the way
        proxy.delay = 0.0
        job = submits.outcome()
        assert isinstance(job, str), job
        assert client.result(job, 30) == "twice"
        assert _jobs_named(place, name) == [job]
        assert len(client.rows(job)) == 1


def test_a_submission_that_is_sent_twice_at_once_is_one_job(place: Place) -> None:
    call = build_submission(place.config, ECHO, "both", None, {})
    with Client(place.url, config=place.config) as client:
        sent = [Background(lambda: client.gateways.send(call)) for _ in range(8)]  # type: ignore[attr-defined]
        assert len({each.outcome()["job"] for each in sent}) == 1


def test_an_outage_of_the_server_is_reported_as_such(place: Place, reach: Reach) -> None:
    port = int(place.config.broker_url.get_secret_value().rpartition(":")[2].partition("/")[0])
    with Proxy(("127.0.0.1", port)) as proxy:
        url = place.config.broker_url.get_secret_value().replace(f":{port}/", f":{proxy.port}/")
        config = place.config.model_copy(update={"broker_url": SecretStr(url)})
        with serving(config) as gateway:
            client = reach(gateway.url)
            job = client.submit({"root": stage("bench_sleep", ms=1500)}, {"ms": 1500})
            waits = Background(lambda: client.result(job, 60))
            there, proxy.address = proxy.address, ("127.0.0.1", 1)
            proxy.cut(reset=True)
            with pytest.raises(errors.BrokerUnreachable) as caught:
                reach(gateway.url).submit(ECHO, 1)
            assert type(caught.value) is errors.BrokerUnreachable
            assert str(port) not in str(caught.value)
            proxy.address = there
            assert waits.outcome() == {"ms": 1500}


def test_unreachable_gateways_are_reported_at_once(reach: Reach) -> None:
    client = reach("http://127.0.0.1:1,http://127.0.0.1:2")
    for way in (lambda: client.submit(ECHO), client.queues, client.seats, lambda: client.cancel("j")):
        with pytest.raises(errors.GatewayUnreachable) as caught:
            way()
        assert caught.value.path == "http://127.0.0.1:1, http://127.0.0.1:2"


def test_a_path_without_a_gateway_is_an_error(place: Place, reach: Reach) -> None:
    with pytest.raises(errors.RouteNotFound):
        reach(f"{place.url}/below").submit(ECHO)


@dataclass
class Keyed:
    """A gateway of a grid that requires keys, and a client of its server."""

    url: str
    server: BrokerClient

    def make(self, agent: str, *scopes: str, **more: Any) -> str:
        """Return a new key."""
        usual = {"scopes": scopes} if scopes else {}
        return api_keys.create(self.server.redis, self.server.keys, agent, **usual, **more)[1]


@pytest.fixture
def keyed(place: Place) -> Iterator[Keyed]:
    config = place.config.model_copy(update={"prefix": f"k{secrets.token_hex(4)}:"})
    with BrokerClient(config=config) as server, serving(config) as gateway:
        made = Keyed(gateway.url, server)
        made.make("somebody")
        yield made
        for key in server.redis.scan_iter(f"{config.prefix}*", count=1000):
            server.redis.unlink(key)


def test_a_key_is_required_and_limited_to_its_scopes(keyed: Keyed, reach: Reach) -> None:
    url, make = keyed.url, keyed.make
    with pytest.raises(errors.KeyMissing) as caught:
        reach(url).submit(SLEEP, wait_for_seat=True)
    assert caught.value.path == "Authorization"
    wrong = f"{make('ann')[:-4]}AAAA"
    with pytest.raises(errors.KeyInvalid) as invalid:
        reach(url, wrong).queues()
    assert wrong[-20:] not in str(invalid.value)
    with pytest.raises(errors.KeyScopeMissing):
        reach(url, make("ann", "read")).submit(SLEEP, wait_for_seat=True)
    client = reach(url, make("ann"))
    job = client.submit(SLEEP, wait_for_seat=True, agent="bob")
    assert client.view(job).agent == "ann"  # a key names its agent itself
    with pytest.raises(errors.JobNotFound):
        reach(url, make("eve")).view(job)
    other = reach(url, make("eve"))
    second = other.submit(SLEEP, wait_for_seat=True, key=make("ann"))  # the call's own key goes before
    assert client.view(second).agent == "ann"
    assert {client.cancel(each) for each in (job, second)} == {True}


def test_waiting_survives_a_busy_key(keyed: Keyed, reach: Reach) -> None:
    key = keyed.make("ann", limits=api_keys.KeyLimits(parallel=1))
    client, other = reach(keyed.url, key), reach(keyed.url, key)
    job = client.submit(SLEEP, wait_for_seat=True)
    waits = [Background(partial(each.result, job, 60)) for each in (client, other)]
    with pytest.raises(errors.KeyBusy):
        wait_for(lambda: reach(keyed.url, key).queues() and None)
    assert keyed.server.cancel(job)
    assert [type(each.outcome()) for each in waits] == [errors.JobCancelled] * 2


def _jobs_named(place: Place, name: str) -> list[str]:
    """Return the jobs named `name`."""
    return [each.job for each in place.grid.client.jobs(20) if each.name == name]
