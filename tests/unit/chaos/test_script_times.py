"""The slow calls of a server are collected by the names of their scripts."""

from __future__ import annotations

import time
from pathlib import Path

import redis

from gridq.config.settings import Settings
from gridq.store.scripts import Scripts
from tests.chaos.script_times import ScriptTimes, SlowCall
from workers.supervisor.embedded_server import EmbeddedServer


def test_slow_calls_are_collected_once_and_named(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path / "data") as server:
        config = Settings(broker_url=server.url, home=tmp_path)
        with redis.Redis.from_url(server.url) as client:
            times = ScriptTimes(client, config)
            times.collect(client)
            assert times.select([]) == []
            client.config_set("slowlog-log-slower-than", 0)
            Scripts(client, config).adopt()
            client.evalsha(Scripts(client, config).shas["adopt_schema"], 0)
            times.collect(client)
            client.config_set("slowlog-log-slower-than", 0)
            names = {call.name for call in times.select([])}
            assert {"adopt_schema", "config"} <= names
            count = len([call for call in times.calls if call.name == "adopt_schema"])
            times.collect(client)
            assert len([call for call in times.calls if call.name == "adopt_schema"]) == count


def test_calls_during_a_suspension_of_the_server_do_not_count(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path / "data") as server, redis.Redis.from_url(server.url) as client:
        times = ScriptTimes(client, Settings(broker_url=server.url, home=tmp_path))
    now = int(time.time())
    short, long = SlowCall(now, 0.1, "claim"), SlowCall(now - 60, 2.0, "sweep")
    times.calls = [short, long]
    assert times.select([]) == [long, short]
    assert times.select([(now - 1, now + 1)]) == [long]
    assert times.select([(now - 59.5, now - 59)]) == [short]
