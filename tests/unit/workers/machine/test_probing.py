"""One profile's fault takes none of the machine's other seats with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import pytest
from pydantic import BaseModel

from gridq.config.settings import Settings
from gridq.errors import ConfigError
from gridq.profiles.profile import Profile
from gridq.protocol.models import Json, ProbeReport, SeatOffer
from tests.fakes.bench_profile import BenchProfile
from workers.machine import probing
from workers.machine.probing import probe_for_seat, probe_machine


class Raising(BenchProfile):
    kind = "raising"

    def __init__(self, fault: BaseException) -> None:
        self.fault = fault

    def probe(self, config: object) -> ProbeReport:
        raise self.fault


class Lying(BenchProfile):
    kind = "lying"

    def probe(self, config: object) -> ProbeReport:
        return ProbeReport(found=[SeatOffer(name="lying", kind=self.kind, capability={"slugs": 5})])


class Misnaming(BenchProfile):
    kind = "misnaming"

    def probe(self, config: object) -> ProbeReport:
        return ProbeReport(found=[SeatOffer(name="misnaming", kind=self.kind, capability={})])

    def queues(self, capability: BaseModel) -> list[str]:
        return ["a queue"]


class Hanging(BenchProfile):
    kind = "hanging"

    def probe(self, config: object) -> ProbeReport:
        import time

        time.sleep(3)
        return ProbeReport()


def _missing(profile: Profile, home: Path) -> str:
    profiles: Mapping[str, Profile] = {profile.kind: profile, "bench": BenchProfile()}
    found = probe_machine(Settings(home=home, profiles=(), stages=()), profiles)
    assert [seat.name for seat in found.seats] == ["local", "bench"]
    (why,) = found.missing
    return why


@pytest.mark.parametrize("fault", [ValueError("no"), SystemExit(3), KeyboardInterrupt(), RecursionError()])
def test_a_probe_that_raises_is_reported(tmp_path: Path, fault: BaseException) -> None:
    assert _missing(Raising(fault), tmp_path).startswith(f"raising: the probe failed: {type(fault).__name__}")


def test_a_probe_with_an_invalid_offer_is_reported(tmp_path: Path) -> None:
    assert "lying: the profile offers an invalid seat" in _missing(Lying(), tmp_path)
    assert "misnaming: the profile offers an invalid seat" in _missing(Misnaming(), tmp_path)


def test_a_probe_that_hangs_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "PROBE_TIMEOUT_SECONDS", 0.3)
    assert "took longer" in _missing(Hanging(), tmp_path)


def test_the_seats_file_reaches_the_probe(tmp_path: Path) -> None:
    (tmp_path / "seats.toml").write_text("[bench]\nconcurrency = 7\n")
    found = probe_machine(Settings(home=tmp_path, profiles=(), stages=()), {"bench": BenchProfile()})
    seat: Json = found.seats[1].offer
    assert seat.concurrency == 7


class Asked(BenchProfile):
    """Notes that it was asked."""

    probes: ClassVar[list[str]] = []

    def probe(self, config: Mapping[str, Json] | Sequence[Json]) -> ProbeReport:
        self.probes.append(self.kind)
        return super().probe(config)


class Other(Asked):
    kind = "other"


class Bench(Asked):
    kind = "bench"


@pytest.fixture
def probed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kinds that are asked, of two profiles called like their kinds."""
    both = {"bench": Bench, "other": Other}
    monkeypatch.setattr(probing, "load_profiles", lambda names: {name: both[name]() for name in names})
    Asked.probes.clear()
    return Asked.probes


def _list_seats(home: Path, seats: str, name: str | None) -> list[str]:
    (home / "seats.toml").write_text(seats)
    found = probe_for_seat(Settings(home=home, profiles=("bench", "other"), stages=()), name)
    return [seat.name for seat in found.seats]


def test_a_worker_probes_only_its_own_seat(tmp_path: Path, probed: list[str]) -> None:
    file = '[[bench]]\nname = "mine"\n[[bench]]\nname = "ours"\n[[other]]\nname = "theirs"\n'
    assert _list_seats(tmp_path, file, "mine") == ["local", "mine"]
    assert probed == ["bench"]


@pytest.mark.parametrize("name", [None, "local", "elsewhere"])
def test_without_a_seat_in_the_file_all_profiles_are_probed(
    tmp_path: Path, probed: list[str], name: str | None
) -> None:
    file = '[[bench]]\nname = "mine"\n[[other]]\nname = "theirs"\n'
    assert _list_seats(tmp_path, file, name) == ["local", "mine", "theirs"]
    assert sorted(probed) == ["bench", "other"]


def test_a_seat_name_in_two_profiles_is_refused(tmp_path: Path, probed: list[str]) -> None:
    with pytest.raises(ConfigError, match="Two seats are named 'mine'"):
        _list_seats(tmp_path, '[[bench]]\nname = "mine"\n[[other]]\nname = "mine"\n', "mine")


@pytest.mark.parametrize("file", ["[nobodys]\n", "[[bench]\n"])
def test_an_invalid_seats_file_is_refused(tmp_path: Path, probed: list[str], file: str) -> None:
    with pytest.raises(ConfigError):
        _list_seats(tmp_path, file + '[[other]]\nname = "mine"\n', "mine")
