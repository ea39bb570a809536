"""`gridq keys`, from making a key to ending it."""

from __future__ import annotations

import json
import re

import pytest
from typer.testing import CliRunner

from gridq import cli
from tests.conftest import GridEnv

pytestmark = pytest.mark.usefixtures("grid_env")


def run(*words: str, code: int = 0) -> tuple[str, str]:
    done = CliRunner().invoke(cli.app, ["keys", *words])
    assert done.exit_code == code, done.output
    return done.stdout, done.stderr


def test_a_key_is_alone_on_stdout_and_shown_once() -> None:
    out, err = run("create", "--agent", "ann", "--team", "research")
    key = out.strip()
    assert key.startswith("gq_")
    assert key not in err
    assert "not shown again" in err
    assert "first key" in err
    assert "first key" not in run("create", "--agent", "bob")[1]
    listed = run("list")[0]
    assert key.split("_")[1] in listed
    assert "research" in listed
    assert key.split("_", 2)[2] not in listed + run("list", "--json")[0]


def test_keys_are_created_rotated_and_revoked_as_json(grid_env: GridEnv) -> None:
    made = json.loads(run("create", "--agent", "ann", "--scope", "submit", "--json")[0])
    assert made["scopes"] == ["submit"]
    new = json.loads(run("rotate", made["id"], "--json")[0])
    assert new["key"] != made["key"]
    listed = {key["id"]: key["active"] for key in json.loads(run("list", "--json")[0])}
    assert listed == {made["id"]: False, new["id"]: True}
    assert json.loads(run("revoke", new["id"], "--json")[0])["expires_at"] is not None
    assert "hash" not in run("list", "--json")[0]


def test_forgetting_the_last_key_makes_the_grid_single_tenant() -> None:
    ids = [json.loads(run("create", "--agent", "ann", "--json")[0])["id"] for _ in range(2)]
    assert "single-tenant" not in run("revoke", ids[0], "--forget")[1]
    assert "single-tenant" in run("revoke", ids[1], "--forget")[1]
    assert "single-tenant" in run("list")[1]


def test_limits_are_stored_listed_and_rotated() -> None:
    assert "limits" not in run("list")[0]
    limits = ("--rpm", "60", "--parallel", "4", "--max-body", "4096", "--origin", "https://app.example.com")
    made = json.loads(run("create", "--agent", "ann", *limits, "--scope", "read-all", "--json")[0])
    expected = {"rpm": 60, "parallel": 4, "max_body": 4096, "origins": ["https://app.example.com"]}
    assert made["limits"] == expected
    new = json.loads(run("rotate", made["id"], "--json")[0])
    assert (new["limits"], new["scopes"]) == (expected, ["read-all"])
    listed = " ".join(run("list")[0].split())
    assert "limits" in listed
    assert "60/min" in listed
    plain = json.loads(run("create", "--agent", "ann", "--json")[0])
    assert (plain["limits"], plain["scopes"]) == ({}, ["submit", "read"])


def test_ids_and_times_fit_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    made = json.loads(run("create", "--agent", "ann", "--team", "research", "--rpm", "60", "--json")[0])
    run("rotate", made["id"], "--overlap", "2d")
    text = run("list")[0]
    assert max(map(len, text.splitlines())) <= 80
    assert made["id"] in text.split()
    days = re.findall(r"\d{4}-\S*", text)
    assert len(days) == 3
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d", day) for day in days)
    assert len(re.findall(r"(?<!\S)\d\d:\d\d(?!\S)", text)) == 3


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("create", "--agent", "a", "--rpm", "0"), "--rpm"),
        (("create", "--agent", "a", "--parallel", "1000000"), "--parallel"),
        (("create", "--agent", "a", "--max-body", "1"), "--max-body"),
        (("create", "--agent", "a", "--origin", "app.example.com"), "--origin"),
        (("create", "--agent", "a", "--origin", "https://app.example.com/"), "--origin"),
        (("create", "--agent", "a b"), "--agent"),
        (("create", "--agent", "a", "--scope", "admin"), "submit or read"),
        (("revoke", "nobody"), "auth.key_not_found"),
        (("rotate", "nobody"), "auth.key_not_found"),
    ],
)
def test_a_wrong_argument_is_a_one_line_error(words: tuple[str, ...], text: str) -> None:
    err = run(*words, code=2)[1]
    assert text in err
    assert len(err.splitlines()) == 1
