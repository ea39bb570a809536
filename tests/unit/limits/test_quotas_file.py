"""The quotas file: read exactly, refused whole, its line and key named."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from gridq.config.source_positions import iterate_toml_keys
from gridq.errors import QuotasFileError
from gridq.limits.quotas_file import AgentLimit, QueueLimit, SeatLimit, TeamLimit, load, parse
from gridq.protocol.models import Limit
from gridq.protocol.queue_aliases import QueueAliases

TOML = """\
# what everyone may use
[agents.ann]
team = "research"
monthly_dollars = 12.5
monthly_jobs = 100

[agents."*"]
monthly_cents = 100

[agents]
bob = { monthly_dollars = "none", monthly_jobs = 0 }

[teams.research]
monthly_dollars = 0

[seats."alice-3f2a.openai"]
budget_dollars = 20
period = "week"
requests_per_minute = 60

[queues."*"]
max_pending = 500

[queues."llm:claude"]
max_pending = 200
policy = "drop-oldest-batch"
"""


def test_money_is_parsed_to_integer_micro_dollars() -> None:
    limits = parse(TOML, "q.toml")
    assert limits.agents == {
        "ann": AgentLimit("research", 12_500_000, 100),
        "*": AgentLimit(None, 1_000_000, None),
        "bob": AgentLimit(None, None, 0),
    }
    assert limits.teams == {"research": TeamLimit(0, None)}
    budget = Limit(resource="money", window="week", amount=20_000_000)
    assert limits.seats == {"alice-3f2a.openai": SeatLimit((budget,), 60)}
    assert limits.to_fields()["a:ann"] == "research 12500000 100"
    assert limits.to_fields()["a:bob"] == "- - 0"
    assert limits.to_fields()["t:research"] == "0 -"
    assert limits.to_fields()["s:alice-3f2a.openai"] == "60 - money/week/20000000"


def test_queues_have_a_bound_and_a_policy() -> None:
    limits = parse(TOML, "q.toml")
    assert limits.queues == {
        "*": QueueLimit(500, "reject"),
        "llm:claude": QueueLimit(200, "drop-oldest-batch"),
    }
    assert limits.to_fields()["q:llm:claude"] == "200 drop-oldest-batch"
    assert limits.to_fields()["q"] == "2"
    assert "q" not in parse('{"ann": 5}', "q.json").to_fields()


def test_the_plain_map_is_cents_a_month() -> None:
    limits = parse('{"ann": 5000, "bob": 0}', "quotas.json")
    assert limits.agents == {"ann": AgentLimit(None, 50_000_000), "bob": AgentLimit(None, 0)}


@pytest.mark.parametrize("name", ["meta/llama-3", "Meta/Llama-3", "meta%2Fllama-3"])
def test_model_names_may_be_written_in_different_ways(name: str) -> None:
    text = f'[families."{name}"]\nparallel = 2\n[queues."llm:{name}"]\nmax_pending = 3'
    found = parse(text, "q.toml").to_fields()
    assert found == {"m:f:meta%2Fllama-3": "parallel/-/2", "q:llm:meta%2Fllama-3": "3 reject", "q": "1"}
    tagged = parse('[families."llama3:8b"]\nparallel = 2', "q.toml")
    assert tagged.to_fields() == {"m:f:llama3%3A8b": "parallel/-/2"}


def test_an_empty_file_has_no_limits() -> None:
    assert parse("{}", "q.json").to_fields() == parse("", "q.toml").to_fields() == {}


def test_a_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "q.json"
    path.write_bytes(b'\xef\xbb\xbf{"ann": 1}')
    assert load(path).agents["ann"].money == 10_000


@pytest.mark.parametrize(
    ("text", "line", "key", "words"),
    [
        ('[queues."llm claude"]\nmax_pending = 5', 1, "queues.llm claude", "Invalid queue name"),
        ("[queues.llm]\nmax_pending = 5", 1, "queues.llm", "Invalid queue name"),
        ('[queues."llm:a"]\npending = 5', 2, "queues.llm:a.pending", "Unknown key"),
        ('[queues."llm:a"]\nmax_pending = -5', 2, "queues.llm:a.max_pending", "not a valid count"),
        ('[queues."llm:a"]\npolicy = "drop"', 2, "queues.llm:a.policy", "Unknown policy"),
        ("[agents.ann]\nmonthly_dolars = 5", 2, "agents.ann.monthly_dolars", "Unknown key"),
        ("\n\n[agent.ann]\nmonthly_dollars = 5", 3, "agent", "Unknown key"),
        ("[agents.ann]\nmonthly_dollars = -1", 2, "agents.ann.monthly_dollars", "not a valid amount"),
        ("[agents.ann]\nmonthly_dollars = true", 2, "agents.ann.monthly_dollars", "not a valid amount"),
        ("[agents.ann]\nmonthly_dollars = inf", 2, "agents.ann.monthly_dollars", "not a valid amount"),
        ("[agents.ann]\nmonthly_dollars = nan", 2, "agents.ann.monthly_dollars", "not a valid amount"),
        ("[agents.ann]\nmonthly_dollars = 2e9", 2, "agents.ann.monthly_dollars", "not a valid amount"),
        ('[agents.ann]\nmonthly_dollars = "5"', 2, "agents.ann.monthly_dollars", "not a valid amount"),
        ("[agents.ann]\nmonthly_dollars = 0.0000001", 2, "agents.ann.monthly_dollars", "micro-dollar"),
        (
            "[agents.ann]\nmonthly_dollars = 5\nmonthly_cents = 5",
            3,
            "agents.ann.monthly_cents",
            "Both",
        ),
        ("[agents.ann]\nmonthly_jobs = 1.5", 2, "agents.ann.monthly_jobs", "not a valid count"),
        ('[agents.ann]\nteam = "x"', 2, "agents.ann.team", "Unknown team 'x'"),
        ('[teams.x]\n[agents."*"]\nteam = "x"', 3, "agents.*.team", "cannot have a team"),
        ("[agents]\nann = { team = 1 }\nb = {}", 2, "agents.ann.team", "Unknown team 1"),
        ('[agents]\nann = {}\n"b b" = {}', 3, "agents.b b", "Invalid name"),
        ("teams = 1\nagents = 3", 1, "teams", "must be a table"),
        ("[agents]\nann = 5", 2, "agents.ann", "must be a table"),
        ('[seats."m.a"]\nperiod = """\nyear"""', 2, "seats.m.a.period", "Unknown period"),
        (
            '[seats."m.a"]\nrequests_per_minute = 100001',
            2,
            "seats.m.a.requests_per_minute",
            "not a valid count",
        ),
        (
            '[seats."m.a"]\nbudget_cents = 1\nbudgets = [{dollars = 1, per = "month"}]',
            3,
            "seats.m.a.budgets",
            "per month",
        ),
        (
            '[grid]\nrequests_per_minute = 1\nbudgets = [{requests = 1, per = "1m"}]',
            3,
            "grid.budgets",
            "per 1m",
        ),
        (f'[grid]\nbudgets = [{{cents = 0x{"f" * 5000}, per = "day"}}]', 2, "grid.budgets", "digits"),
        (f"[grid]\nbudgets = [{{cents = 1, per = 0x{'f' * 5000}}}]", 2, "grid.budgets", "digits"),
        (f"[agents.ann]\nteam = 0x{'f' * 5000}", 2, "agents.ann.team", "digits"),
        (f'[seats."m.a"]\nowner = 0x{"f" * 5000}', 2, "seats.m.a.owner", "digits"),
        (f'[queues."llm:any"]\npolicy = 0x{"f" * 5000}', 2, "queues.llm:any.policy", "digits"),
        ("[agents.ann]\n[agents.ann]", 2, "", "is not TOML"),
        ("[agents.ann\n", 1, "", "is not TOML"),
        ("[agents.gq_0123_secret]", 1, "agents.gq_0123_secret", "API key"),
        ("[grid]\nbudgets = 5", 2, "grid.budgets", "must be a list"),
        ("[grid]\nbudgets = [5]", 2, "grid.budgets", "must be a table"),
        ("[grid]\nmonthly_dollars = 5", 2, "grid.monthly_dollars", "Unknown key"),
        ("[[grid]]\nparallel = 1", 1, "grid", "must be a table"),
        ('[grid]\nbudgets = [{dollars = -1, per = "day"}]', 2, "grid.budgets", "not a valid amount"),
        ('[grid]\nbudgets = [{dollars = nan, per = "day"}]', 2, "grid.budgets", "not a valid amount"),
        ('[grid]\nbudgets = [{cents = 0.00001, per = "day"}]', 2, "grid.budgets", "micro-dollar"),
        ('[grid]\nbudgets = [{dollars = 1, cents = 1, per = "day"}]', 2, "grid.budgets", "has both"),
        ('[grid]\nbudgets = [{jobs = 1, per = "day"}]', 2, "grid.budgets", "no key 'jobs'"),
        ("[grid]\nbudgets = [{tokens = 1}]", 2, "grid.budgets", "no window"),
        (
            f'[owners.a]\nbudgets = [{{tokens = {10**18}, per = "day"}}]',
            2,
            "owners.a.budgets",
            "not a valid count",
        ),
        ('[owners.a]\nbudgets = [{tokens = 1, per = "5 hours"}]', 2, "owners.a.budgets", "not a window"),
        ('[owners.a]\nbudgets = [{tokens = 1, per = "0h"}]', 2, "owners.a.budgets", "not a window"),
        ('[owners.a]\nbudgets = [{tokens = 1, per = "999d"}]', 2, "owners.a.budgets", "not a window"),
        ('[agents.a]\nbudgets = [{tokens = 1, per = "5h"}]', 2, "agents.a.budgets", "not a window"),
        (
            '[owners.a]\nbudgets = [{tokens = 1, per = "1m"}]\ntokens_per_minute = 2',
            2,
            "owners.a.budgets",
            "Two budgets limit tokens",
        ),
        ("[owners.a]\nparallel = -1", 2, "owners.a.parallel", "not a valid count"),
        ('[families."a\\tb"]', 1, r"families.a\tb", "Invalid name"),
        ('[families.""]', 1, "families.", "Invalid name"),
        (f"[families.{'x' * 201}]", 1, f"families.{'x' * 201}", "Invalid name"),
        ("[families.Any]", 1, "families.Any", "not a family"),
        ('[families."llm:opus"]', 1, "families.llm:opus", r'write \[families."opus"\]'),
        ("[families.opus]\n[families.Opus]\nparallel = 1", 2, "families.Opus", "are the same family"),
        ('[families."m/x"]\n[families."m%2Fx"]', 2, "families.m%2Fx", "are the same family"),
        ('[families."m/x"]\n\nparalel = 1', 3, "families.m/x.paralel", "Unknown key"),
        ('[queues."llm:m/x"]\n[queues."llm:M%2Fx"]', 2, "queues.llm:M%2Fx", "are the same queue"),
        ('[queues."llm:m\\tx"]', 1, r"queues.llm:m\tx", "Invalid queue name"),
        ('[queues."LLM:x"]', 1, "queues.LLM:x", "Invalid queue name"),
    ],
)
def test_an_error_names_line_and_key(text: str, line: int, key: str, words: str) -> None:
    with pytest.raises(QuotasFileError, match=words) as caught:
        parse(text, "q.toml")
    assert caught.value.path == f"q.toml:{line}" + (f": {key}" if key else "")


@pytest.mark.parametrize(
    ("text", "path", "words"),
    [
        ('{"ann": 5,\n "bob": -1}', "q.json:2: bob", "not a valid amount"),
        ('{"ann": 5,\n "bob": {}}', "q.json:1: ann", "Unknown key"),
        ('{"ann": 5,\n "ann": 6}', "q.json:2: ann", "twice"),
        (
            '{"agents": {\n "a": {"team": "t"}},\n "teams": {"t": {},\n "t": {}}}',
            "q.json:4: teams.t",
            "twice",
        ),
        (
            '{"teams": {"[x],{": 3},\n "agents": {"a":\n {"team": "t"}}}',
            "q.json:1: teams.[x],{",
            "Invalid name",
        ),
        (
            '{"agents": {"a\\u006e": {\n"monthly_jobs": []}}}',
            "q.json:2: agents.an.monthly_jobs",
            "not a valid count",
        ),
        ('{"ann": 5,\n}', "q.json:2: column 1|q.json:1", "is not JSON"),
        ("[1]", "q.json:1", "must be a table"),
        ('{"ann": NaN}', "q.json:1: ann", "not a valid amount"),
        ('{"teams": {"-": {}}}', "q.json:1: teams.-", "cannot be a team"),
        ('{"ann": 1e999999}', "q.json:1: ann", "not a valid amount"),
        ('{"ann": 1e9999999999999999999}', "q.json:1: ann", "not a valid amount"),
        ('{"agents": {"\\ud800\\u001b": {}}}', "q.json:1: agents.\\ud800\\x1b", "Invalid name"),
        ("", "q.json:1", "is not JSON"),
    ],
)
def test_an_error_in_json_names_line_and_key(text: str, path: str, words: str) -> None:
    with pytest.raises(QuotasFileError, match=words) as caught:
        parse(text, "q.json")
    assert (caught.value.path or "").startswith(tuple(path.split("|")))


KEYS = (
    r"""# [no.table]
a = "# \" [x] = {" # b = 1
[b . "c.d" . 'e"']
"f\u0067" = '''
h = 1
'' [i] ''''
j.k = [ # l = 1
  {m = 1}, [{n = 2}],
]
o = {p = {q = QQQ
r = \QQQ "" 1
QQQ"", s.t = {}}, u = [
  {v = 1}], w = 1979-05-27T07:32:00.5Z}

[[x]]
y = 1.5e3
""".replace("QQQ", '"' * 3)
    + '[z]\r\n"" = 0'
)


def test_toml_keys_are_found_with_their_lines() -> None:
    tomllib.loads(KEYS)
    at = ("b", "c.d", 'e"')
    assert list(iterate_toml_keys(KEYS)) == [
        (("a",), 2),
        (at, 3),
        ((*at, "fg"), 4),
        ((*at, "j", "k"), 7),
        ((*at, "o"), 10),
        ((*at, "o", "p"), 10),
        ((*at, "o", "p", "q"), 10),
        ((*at, "o", "p", "s", "t"), 12),
        ((*at, "o", "u"), 12),
        ((*at, "o", "w"), 13),
        (("x",), 15),
        (("x", "y"), 16),
        (("z",), 17),
        (("z", ""), 18),
    ]


def test_an_error_in_a_large_file_is_located_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    loads = tomllib.loads

    def counted(text: str, **more: Any) -> dict[str, Any]:
        read.append(len(text))
        return loads(text, **more)

    monkeypatch.setattr(tomllib, "loads", counted)
    tables = "".join(f'[agents.a{n}]\nbudgets = [\n{{tokens = 1, per = "day"}},\n]\n' for n in range(500))
    with pytest.raises(QuotasFileError) as caught:
        parse(tables + "[agents.z]\nmonthly_jobs = -1", "q.toml")
    assert caught.value.path == "q.toml:2002: agents.z.monthly_jobs"
    assert sum(read) < 2 * len(tables)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(QuotasFileError, match="cannot be read"):
        load(tmp_path / "none.toml")


def test_errors_do_not_repeat_values_of_the_file() -> None:
    """A file is told by its lines and keys; values stay where they are, but for a misspelt word."""
    with pytest.raises(QuotasFileError) as caught:
        parse('{"agents": {"ann": {"monthly_jobs": "s3cret"}}}', "q.json")
    assert "s3cret" not in str(caught.value)


def test_a_name_that_needs_quotes_gets_a_fix() -> None:
    with pytest.raises(QuotasFileError) as caught:
        parse("[families.meta/llama-3]\nparallel = 1\n", "q.toml")
    assert caught.value.details["path"] == "q.toml:1"
    assert "quote names" in caught.value.details["fix"]


def test_models_stand_for_others_in_order() -> None:
    text = """
[models]
"GPT-4o-mini" = ["llm:Qwen/Qwen3-8B", "any"]
"claude-*-Haiku-*" = ["llm:small", "gpt-4o-mini"]
one = "two"
two = "llm:small"
"""
    aliases = parse(text, "q.toml").models
    mini = ("llm:qwen%2Fqwen3-8b", "llm:any")
    assert aliases.entries == (
        ("llm:gpt-4o-mini", mini),
        ("llm:claude-*-haiku-*", ("llm:small", *mini)),
        ("llm:one", ("llm:small",)),
        ("llm:two", ("llm:small",)),
    )
    assert aliases.find_targets("llm:claude-3-5-haiku-latest") == ("llm:small", *mini)
    assert aliases.find_targets("llm:claude-3-haiku") == ()
    stored = parse(text, "q.toml").to_fields()["models"]
    assert QueueAliases.from_json(stored) == aliases
    assert "models" not in parse("", "q.toml").to_fields()


CHAIN = "\n".join(f'a{n} = "a{n + 1}"' for n in range(20)) + '\na20 = "llm:y"'
MANY = "\n".join(f"a{n} = {[f'llm:{n}-{m}' for m in range(7)]}" for n in range(5)) + (
    '\nb = ["a0", "a1", "a2", "a3", "a4"]'
)


@pytest.mark.parametrize(
    ("table", "line", "key"),
    [
        ('a = ["b"]\nb = ["a"]', 3, "b"),
        ('a = "a"', 2, "a"),
        ('x = "llm:y"\na = ["llm:y", "b"]', 3, "a"),
        ('a = "llm:y*"', 2, "a"),
        ('"a-*" = "llm:y"\nb = "a-*"', 3, "b"),
        ('a = "llm:"', 2, "a"),
        ('a = ""', 2, "a"),
        ("a = []", 2, "a"),
        ("a = 3", 2, "a"),
        ("a = [3]", 2, "a"),
        ('a = ["any", "any", "any", "any", "any", "any", "any", "any"]', 2, "a"),
        ('any = "llm:y"', 2, "any"),
        ('"llm:a" = "llm:y"', 2, "llm:a"),
        ('a = "llm:y"\nA = "llm:y"', 3, "A"),
        ('"" = "llm:y"', 2, ""),
        (CHAIN, 10, "a8"),
        (MANY, 7, "b"),
    ],
)
def test_a_model_that_stands_for_nothing_known_is_refused(table: str, line: int, key: str) -> None:
    with pytest.raises(QuotasFileError) as caught:
        parse(f"[models]\n{table}", "q.toml")
    assert caught.value.path is not None
    assert caught.value.path.startswith(f"q.toml:{line}")
    assert f"models.{key}" in caught.value.path


def test_models_that_share_others_are_resolved_once() -> None:
    levels = 8
    table = "\n".join(
        f'"{n}a" = ["{n + 1}a", "{n + 1}b"]\n"{n}b" = ["{n + 1}b", "{n + 1}a"]' for n in range(levels - 1)
    )
    table += f'\n"{levels - 1}a" = "llm:x"\n"{levels - 1}b" = "llm:y"'
    aliases = parse(f"[models]\n{table}", "q.toml").models
    assert aliases.find_targets("llm:0a") == ("llm:x", "llm:y")


def test_gpu_seconds_are_a_thing_of_every_budget() -> None:
    day = '[{gpu_seconds = 90, per = "day"}]'
    tables = ("agents.ann", "teams.t", 'seats."m.a"', "owners.bob", "families.opus", "grid")
    found = parse("".join(f"[{table}]\nbudgets = {day}\n" for table in tables), "q.toml")
    limits = (Limit(resource="gpu_seconds", window="day", amount=90_000),)
    assert found.agents["ann"].budgets == found.teams["t"].budgets == found.seats["m.a"].budgets == limits
    assert found.owners["bob"] == found.families["opus"] == found.grid == limits
    assert found.to_fields()["m:g"] == "gpu_seconds/day/90000"
