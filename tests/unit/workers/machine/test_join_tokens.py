"""Join tokens on a real server."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gridq.errors import ConfigError, JoinRefused, JoinTokenInvalid
from gridq.store.keys import Keys
from tests.conftest import GridEnv
from workers.machine import join_tokens, joining
from workers.machine.join_tokens import JoinToken

pytestmark = pytest.mark.usefixtures("key_hygiene")
URL = "redis://me:pass%2Fword@example.com:6379/2"


def make(env: GridEnv, **options: int) -> JoinToken:
    text, _ = join_tokens.create(env.client, Keys(env.prefix), URL, ttl=600, uses=options.get("uses", 1))
    return JoinToken.decode(text)


def test_a_token_has_the_login_but_no_address(grid_env: GridEnv) -> None:
    token = make(grid_env)
    assert (token.user, token.password, token.prefix) == ("me", "pass/word", grid_env.prefix)
    assert "example.com" not in str(JoinToken.decode(token.encode()).__getstate__())
    assert token.secret not in repr(token)
    assert joining.add_login("redis://other:1/0", token) == "redis://me:pass%2Fword@other:1/0"
    assert joining.add_login("redis://:own@other:1/0", token) == "redis://:own@other:1/0"
    assert joining.add_login("unix:///run/s.sock", token) == "unix://me:pass%2Fword@/run/s.sock"


def test_the_server_keeps_a_hash_that_expires(grid_env: GridEnv) -> None:
    token = make(grid_env)
    keys = Keys(grid_env.prefix)
    stored = grid_env.client.hgetall(keys("token", token.id))
    assert token.secret.encode() not in b"".join(stored.values())
    for name in (keys("token", token.id), keys("tokens")):
        assert 0 < grid_env.client.pttl(name) <= 600_000
    make(grid_env)
    join_tokens.create(grid_env.client, keys, URL, ttl=5, uses=1)
    assert grid_env.client.pttl(keys("tokens")) > 500_000, "the index outlives its longest token"


def test_concurrent_joins_use_a_token_no_more_often_than_allowed(grid_env: GridEnv) -> None:
    token = make(grid_env, uses=3)
    keys = Keys(grid_env.prefix)

    def spend(_: int) -> bool:
        try:
            join_tokens.use(grid_env.client, keys, token)
        except JoinTokenInvalid:
            return False
        return True

    with ThreadPoolExecutor(12) as pool:
        assert sum(pool.map(spend, range(12))) == 3
    with pytest.raises(JoinTokenInvalid, match="it is used up"):
        join_tokens.check(grid_env.client, keys, token)
    assert [record.left for record in join_tokens.list_tokens(grid_env.client, keys)] == [0]


def test_a_wrong_or_revoked_token_is_refused(grid_env: GridEnv) -> None:
    keys, client = Keys(grid_env.prefix), grid_env.client
    token = make(grid_env)
    wrong = JoinToken(token.id, "x" * 43, token.user, token.password, token.prefix, token.version)
    with pytest.raises(JoinTokenInvalid, match="another grid"):
        join_tokens.use(client, keys, wrong)
    join_tokens.check(client, keys, token)
    assert join_tokens.revoke(client, keys, token.id)
    assert not join_tokens.revoke(client, keys, token.id)
    with pytest.raises(JoinTokenInvalid, match="was revoked"):
        join_tokens.use(client, keys, token)
    assert not client.exists(keys("token", token.id)), "a spent try makes no key without a life"
    assert join_tokens.list_tokens(client, keys) == []


@pytest.mark.parametrize("text", ["", "gqjoin_", "gqjoin_AAAA", "gqjoin_e30", "gqjoin_ä", "secret"])
def test_an_invalid_token_is_refused_without_showing_it(text: str) -> None:
    with pytest.raises(JoinTokenInvalid) as caught:
        JoinToken.decode(text)
    assert caught.value.path == "--token"


def test_a_clock_difference_is_warned_of_or_refused(
    grid_env: GridEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []
    now = time.time
    assert abs(joining.check_clock(grid_env.client, warnings.append)) < 2
    assert warnings == []
    monkeypatch.setattr(time, "time", lambda: now() + 10)
    joining.check_clock(grid_env.client, warnings.append)
    assert "10.0 s ahead of the server's" in warnings[0]
    monkeypatch.setattr(time, "time", lambda: now() - 100)
    with pytest.raises(JoinRefused, match=r"100\.0 s behind the server's"):
        joining.check_clock(grid_env.client, warnings.append)


def test_another_minor_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "version", lambda name: "0.3.1")
    joining.check_versions(["0.3.0", "", "0.3.9"])
    with pytest.raises(JoinRefused, match=r"install gridq 0\.4\.0"):
        joining.check_versions(["0.3.0", "0.4.0"])


def test_the_environment_must_not_name_another_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRIDQ_BROKER_URL", "redis://h:1/0")
    with pytest.raises(ConfigError, match="unset GRIDQ_BROKER_URL"):
        joining.check_environment()


def test_joining_keeps_the_existing_configuration(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('drain = 5\nprofiles = ["llm"]\nstages_dir = "/ö/\\"x"\n')
    path = joining.write_config(tmp_path, {"broker_url": "redis://:p@h:1/0", "prefix": "x:"})
    assert joining.read_config(tmp_path) == {
        "drain": 5, "profiles": ["llm"], "stages_dir": '/ö/"x', "broker_url": "redis://:p@h:1/0",
        "prefix": "x:",
    }  # fmt: skip
    assert path.stat().st_mode & 0o777 == 0o600
