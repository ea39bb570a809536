"""API keys: shown once, stored hashed, ended at once."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from pydantic import SecretStr

from gridq.config.settings import Settings
from gridq.errors import ConfigError, KeyInvalid, KeyNotFound, KeyRevoked, KeyScopeMissing
from gridq.jobs.record import parse_options
from gridq.limits import api_keys
from gridq.store.keys import Keys
from gridq.tasks import complete
from tests.conftest import GridEnv

pytestmark = pytest.mark.usefixtures("key_hygiene")


def names(env: GridEnv) -> Keys:
    return Keys(env.prefix)


def verify(env: GridEnv, text: str, scope: str = "submit") -> api_keys.Key:
    return api_keys.verify(env.client, names(env), SecretStr(text), scope)


def test_a_key_names_its_agent(grid_env: GridEnv) -> None:
    made, text = api_keys.create(grid_env.client, names(grid_env), "ann", team="research")
    found = verify(grid_env, text)
    assert found == made
    assert (found.agent, found.team, found.scopes) == ("ann", "research", ("submit", "read"))
    assert verify(grid_env, f" {text}\n") == made  # as it comes out of a file


def test_no_secret_is_stored(grid_env: GridEnv) -> None:
    made, text = api_keys.create(grid_env.client, names(grid_env), "ann")
    secret = text.split("_", 2)[2]
    stored = [grid_env.client.hgetall(key) for key in grid_env.client.scan_iter(f"{grid_env.prefix}*")]
    assert stored
    assert secret not in str(stored)
    assert secret not in repr(made)
    assert (
        len({api_keys.create(grid_env.client, names(grid_env), "ann")[1] for _ in range(20)} | {text}) == 21
    )


def test_all_invalid_keys_get_the_same_error_without_the_secret(grid_env: GridEnv) -> None:
    """The error does not tell whether the id or the secret was wrong."""
    _, text = api_keys.create(grid_env.client, names(grid_env), "ann")
    other = "gq_" + "0" * 12 + text[15:]
    wrong = text[:-1] + ("A" if text[-1] != "A" else "B")
    messages = set()
    for bad in ("", "secret", other, wrong, text + "x", text[:-1], text.upper()):
        with pytest.raises(KeyInvalid) as caught:
            verify(grid_env, bad)
        assert text[16:-1] not in str(caught.value)
        messages.add(str(caught.value))
    assert len(messages) == 1


def test_a_revoked_key_ends_at_once(grid_env: GridEnv) -> None:
    made, text = api_keys.create(grid_env.client, names(grid_env), "ann")
    api_keys.revoke(grid_env.client, names(grid_env), made.id)
    with pytest.raises(KeyRevoked, match=made.id):
        verify(grid_env, text)
    ended = api_keys.revoke(grid_env.client, names(grid_env), made.id)
    assert [ended] == api_keys.list_keys(grid_env.client, names(grid_env))


def test_a_key_revoked_during_rotation_stays_revoked(
    grid_env: GridEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, keys = grid_env.client, names(grid_env)
    made, text = api_keys.create(client, keys, "ann")

    def amid(key: api_keys.Key, **changes: Any) -> api_keys.Key:
        monkeypatch.setattr(api_keys, "replace", replace)
        api_keys.revoke(client, keys, key.id)
        return replace(key, **changes)

    monkeypatch.setattr(api_keys, "replace", amid)
    with pytest.raises(KeyRevoked):
        api_keys.rotate(client, keys, made.id, overlap=3600)
    with pytest.raises(KeyRevoked):
        verify(grid_env, text)
    assert [key.id for key in api_keys.list_keys(client, keys)] == [made.id]


def test_a_rotated_key_ends_at_once_or_after_the_overlap(grid_env: GridEnv) -> None:
    first, one = api_keys.create(grid_env.client, names(grid_env), "ann", team="t", scopes=["submit"])
    second, two = api_keys.rotate(grid_env.client, names(grid_env), first.id, overlap=3600)
    assert verify(grid_env, one).id == first.id
    assert (second.agent, second.team, second.scopes) == ("ann", "t", ("submit",))
    third, three = api_keys.rotate(grid_env.client, names(grid_env), second.id)
    with pytest.raises(KeyRevoked):
        verify(grid_env, two)
    assert verify(grid_env, three) == third
    with pytest.raises(KeyRevoked):
        api_keys.rotate(grid_env.client, names(grid_env), second.id)
    # A key that is still good for an hour is ended by revoking it, and by nothing else prolonged.
    assert api_keys.revoke(grid_env.client, names(grid_env), first.id).is_valid(0)
    with pytest.raises(KeyRevoked):
        verify(grid_env, one)


def test_rotating_a_key_that_was_forgotten_meanwhile_creates_none(
    grid_env: GridEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, _ = api_keys.create(grid_env.client, names(grid_env), "ann")
    digest = api_keys.hash_secret

    def forgotten(secret: str) -> str:
        api_keys.forget(grid_env.client, names(grid_env), old.id)
        return digest(secret)

    monkeypatch.setattr(api_keys, "hash_secret", forgotten)  # called once the old key has been read
    with pytest.raises(KeyNotFound):
        api_keys.rotate(grid_env.client, names(grid_env), old.id)
    assert api_keys.list_keys(grid_env.client, names(grid_env)) == []


def test_a_missing_scope_is_refused(grid_env: GridEnv) -> None:
    _, text = api_keys.create(grid_env.client, names(grid_env), "ann", scopes=["read"])
    assert verify(grid_env, text, "read").agent == "ann"
    with pytest.raises(KeyScopeMissing):
        verify(grid_env, text)


def test_an_agent_is_in_one_team(grid_env: GridEnv) -> None:
    made, _ = api_keys.create(grid_env.client, names(grid_env), "ann", team="a")
    with pytest.raises(ConfigError, match="in the team 'a'"):
        api_keys.create(grid_env.client, names(grid_env), "ann", team="b")
    api_keys.revoke(grid_env.client, names(grid_env), made.id)
    api_keys.create(grid_env.client, names(grid_env), "ann", team="b")


@pytest.mark.parametrize(
    ("agent", "team", "scopes"),
    [
        ("a b", None, ["submit"]),
        ("a", "t:x", ["submit"]),
        ("a", None, ["admin"]),
        ("a", None, []),
        ("", None, ["read"]),
    ],
)
def test_invalid_names_create_no_key(
    grid_env: GridEnv, agent: str, team: str | None, scopes: list[str]
) -> None:
    with pytest.raises(ConfigError):
        api_keys.create(grid_env.client, names(grid_env), agent, team=team, scopes=scopes)
    assert not grid_env.client.exists(names(grid_env)("api_keys"))


def test_an_unknown_key_id_is_refused(grid_env: GridEnv) -> None:
    for act in (api_keys.revoke, api_keys.rotate, api_keys.forget):
        with pytest.raises(KeyNotFound, match="abc"):
            act(grid_env.client, names(grid_env), "abc")
    with pytest.raises(KeyNotFound) as caught:
        api_keys.revoke(grid_env.client, names(grid_env), "gq_0123_secret")
    assert "secret" not in str(caught.value)


def test_forgetting_the_last_key_opens_the_grid(grid_env: GridEnv) -> None:
    keys = names(grid_env)
    made = [api_keys.create(grid_env.client, keys, agent)[0] for agent in ("ann", "bob")]
    assert not api_keys.forget(grid_env.client, keys, made[0].id)
    assert api_keys.forget(grid_env.client, keys, made[1].id)
    assert api_keys.list_keys(grid_env.client, keys) == []


def test_a_key_argument_is_a_job_option_and_not_stage_config() -> None:
    graph, _, about = complete.make_graph(prompt="x", max_tokens=3, key="gq_0_secret")
    assert "secret" not in str(graph)
    options = parse_options(about)
    assert options.key is not None
    assert "secret" not in repr(options) + options.model_dump_json() + str(options.model_dump())


def test_an_empty_key_variable_means_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRIDQ_KEY", "")
    assert Settings().key is None
    monkeypatch.setenv("GRIDQ_KEY", "gq_0_secret")
    assert "secret" not in repr(Settings())


def test_a_team_cannot_be_named_dash(grid_env: GridEnv) -> None:
    """The scripts write `-` for no team: a team of that name would be under no limit."""
    with pytest.raises(ConfigError, match="Invalid team name"):
        api_keys.create(grid_env.client, names(grid_env), "ann", team="-")


def test_older_and_newer_key_records_are_read(grid_env: GridEnv) -> None:
    made, text = api_keys.create(grid_env.client, names(grid_env), "ann")
    old = {"agent": "ann", "scopes": ["submit"], "hash": made.hash, "created": made.created}
    for record in (old, {**old, "limits": {"rpm": 5, "unheard": 1}, "unheard": [1]}):
        grid_env.client.hset(names(grid_env)("api_keys"), made.id, json.dumps(record))
        found = verify(grid_env, text)
        assert (found.agent, found.limits.parallel, found.limits.origins) == ("ann", None, ())


def test_some_scopes_include_others() -> None:
    def may(*scopes: str) -> set[str]:
        key = api_keys.Key("k", "ann", None, scopes, "", 0)
        return {scope for scope in api_keys.SCOPES if key.may(scope)}

    assert may("submit") == {"submit"}
    assert may("read") == {"read"}
    assert may("read-all") == {"read", "read-all"}
    assert may("operate") == {"read", "read-all", "operate"}
