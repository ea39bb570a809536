"""Owners and lending terms in the seats file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gridq.config.settings import Settings
from gridq.errors import ConfigError
from gridq.protocol.models import Limit, SeatOffer
from tests.fakes.bench_profile import BENCH, BenchProfile
from workers.machine.probing import probe_machine
from workers.machine.seats import ProbeResult
from workers.owner.lend import Lend, Owners, Terms

SEATS = """
[local]
owner = "alice"

[[bench]]
name = "one"
owner = "alice"
lend = { hours = "19:00-08:00 Mon-Fri, Sat, Sun", only_when_idle = "10m", timezone = "Europe/Berlin" }

[[bench]]
name = "two"

[[bench]]
name = "three"
[bench.lend]
only_when_idle = 90
"""


def probe_seats(home: Path, text: str) -> ProbeResult:
    (home / "seats.toml").write_text(text)
    return probe_machine(Settings(home=home, profiles=(BENCH,)), {"bench": BenchProfile()})


def test_each_seat_has_its_own_terms_hidden_from_the_profile(tmp_path: Path) -> None:
    seats = {seat.name: seat.terms for seat in probe_seats(tmp_path, SEATS).seats}
    assert (seats["local"].owner, seats["one"].owner, seats["two"]) == ("alice", "alice", Terms())
    assert (seats["one"].lend.only_when_idle, seats["three"].lend.only_when_idle) == (600, 90)
    assert seats["one"].lend.parse_hours() is not None
    assert seats["three"].lend.parse_hours() is None


def test_terms_without_a_seat_name_apply_to_the_whole_kind() -> None:
    owners = Owners()
    assert owners.split({"gpu": {"concurrency": 2, "owner": "bob"}}) == {"gpu": {"concurrency": 2}}
    assert [owners.terms_of("gpu", name).owner for name in ("gpu0", "cpu")] == ["bob", "bob"]
    assert owners.terms_of("llm", "gpu0") == Terms()


def test_terms_in_one_of_several_tables_apply_only_to_its_seat() -> None:
    """A table of a model API's endpoint may have a provider in place of a name."""
    owners = Owners()
    ann = {"provider": "openai", "owner": "ann", "lend": {"agents": ["ci"]}}
    bob = {"provider": "mistral", "owner": "bob"}
    owners.split({"llm": [ann, bob, {"name": "eu", "provider": "groq", "owner": "eve"}, {"owner": "dan"}]})
    names = ("openai", "mistral", "eu", "groq", "anthropic")
    assert [owners.terms_of("llm", name).owner for name in names] == ["ann", "bob", "eve", "", ""]
    assert owners.terms_of("llm", "openai").lends_to == ("ci", "ann")
    assert not owners.terms_of("llm", "mistral").lends_to


@pytest.mark.parametrize(
    ("table", "path", "why"),
    [
        ({"owner": "al ice"}, "bench[0].owner", "text that matches"),
        ({"owner": 5}, "bench[0].owner", "text"),
        ({"lend": "yes"}, "bench[0].lend", "an object"),
        ({"lend": {"hour": "Sat"}}, "bench[0].lend.hour", "no such field"),
        ({"lend": {"hours": "Sat-Funday"}}, "bench[0].lend.hours", "'Funday' is not a day"),
        ({"lend": {"timezone": "Europe/Berlln"}}, "bench[0].lend.timezone", "no time zone"),
        ({"lend": {"share": 60}}, "bench[0].lend.share", "at most 1"),
        ({"lend": {"share": 0}}, "bench[0].lend.share", "more than 0"),
        ({"lend": {"only_when_idle": "soon"}}, "bench[0].lend.only_when_idle", "must be a time"),
        ({"lend": {"only_when_idle": True}}, "bench[0].lend.only_when_idle", "must be a time"),
        ({"lend": {"only_when_idle": "2d"}}, "bench[0].lend.only_when_idle", "must be a time"),
    ],
)
def test_invalid_terms_name_their_path(table: dict[str, Any], path: str, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Owners().split({"bench": [{"name": "one", **table}]})
    assert caught.value.details["path"] == path
    assert why in caught.value.details["reason"]


def offer(**more: Any) -> SeatOffer:
    models = [
        {"name": "big-1", "families": ["big"]},
        {"name": "big-2", "families": ["big"]},
        {"name": "small"},
    ]
    given: dict[str, Any] = {"name": "a", "kind": "llm", "concurrency": 4, "capability": {"models": models}}
    return SeatOffer(**{**given, "config": {"models": models, "url": "x"}, **more})


def make_terms(owner: str = "", **lend: Any) -> Terms:
    return Terms(owner, Lend.model_validate(lend))


def test_a_seat_lends_no_more_than_its_terms_say() -> None:
    assert make_terms().apply_to(offer()) == offer()
    assert make_terms(at_most=2).apply_to(offer()).concurrency == 2
    assert make_terms(at_most=9).apply_to(offer()).concurrency == 4
    some = make_terms(models=["big", "small"]).apply_to(offer())
    one = make_terms(models=["big-2"]).apply_to(offer())
    assert [[model["name"] for model in each.capability["models"]] for each in (some, one)] == [
        ["big-1", "big-2", "small"],
        ["big-2"],
    ]
    assert [model["name"] for model in one.config["models"]] == ["big-2"]
    assert one.config["url"] == "x"
    with pytest.raises(ValueError, match=r"none of the models in lend\.models: huge"):
        make_terms(models=["huge"]).apply_to(offer())


def test_a_share_of_the_budget_is_lent_to_the_micro_dollar(tmp_path: Path) -> None:
    def lent(share: float, most: int) -> list[tuple[str, int]]:
        limits = [
            Limit(resource="money", window="month", amount=most),
            Limit(resource="requests", window="5h", amount=9),
        ]
        return [
            (one.resource, one.amount)
            for one in make_terms(share=share).apply_to(offer(limits=limits)).limits
        ]

    assert lent(0.6, 50_000_001) == [("money", 30_000_000), ("requests", 5)]
    assert lent(0.07, 100) == [("money", 7), ("requests", 0)]
    assert lent(1, 7) == [("money", 7), ("requests", 9)]
    seats = probe_seats(
        tmp_path, "[bench]\nbudget = 5\nlend = { share = 0.6 }\n[local]\nlend = { share = 0.5 }\n"
    )
    assert [(s.offer.limits[0].amount, s.whole_budget) for s in seats.seats] == [(3_000_000, 5_000_000)]
    assert seats.missing == ["local: local is not lent: lend.share needs a budget, and the seat has none"]
    seats = probe_seats(tmp_path, "[bench]\nbudget = 0.000001\nlend = { share = 0.6 }\n")
    assert seats.missing == [
        "bench: bench is not lent: lend.share lends nothing of its money a month: $0.000001"
    ]


def test_a_seat_is_always_lent_to_its_owner() -> None:
    assert make_terms("alice").lends_to == ()
    assert make_terms(agents=["ci", "team:research"]).lends_to == ("ci", "team:research")
    assert make_terms("alice", agents=["ci"]).lends_to == ("ci", "alice")
    assert make_terms("ci", agents=["ci"]).lends_to == ("ci",)


def test_a_seat_with_nothing_to_lend_is_reported(tmp_path: Path) -> None:
    seats = probe_seats(
        tmp_path, '[bench]\nconcurrency = 3\nlend = { at_most = 1 }\n[local]\nlend = { models = ["big"] }\n'
    )
    assert [(seat.name, seat.offer.concurrency) for seat in seats.seats] == [("bench", 1)]
    assert seats.missing == ["local: local is not lent: it has none of the models in lend.models: big"]
