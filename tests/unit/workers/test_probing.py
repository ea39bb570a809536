"""One profile's fault takes none of the machine's other seats with it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from pydantic import BaseModel

from gridq.profiles import Profile
from gridq.protocol import Json, ProbeReport, SeatOffer
from gridq.settings import Settings
from gridq.testing import FakeProfile
from workers import probing
from workers.probing import find


class Raising(FakeProfile):
    kind = "raising"

    def __init__(self, fault: BaseException) -> None:
        self.fault = fault

    def probe(self, config: object) -> ProbeReport:
        raise self.fault


class Lying(FakeProfile):
    kind = "lying"

    def probe(self, config: object) -> ProbeReport:
        return ProbeReport(found=[SeatOffer(name="lying", kind=self.kind, capability={"slugs": 5})])


class Misnaming(FakeProfile):
    kind = "misnaming"

    def probe(self, config: object) -> ProbeReport:
        return ProbeReport(found=[SeatOffer(name="misnaming", kind=self.kind, capability={})])

    def queues(self, capability: BaseModel) -> list[str]:
        return ["a queue"]


class Hanging(FakeProfile):
    kind = "hanging"

    def probe(self, config: object) -> ProbeReport:
        import time

        time.sleep(3)
        return ProbeReport()


def _missing(profile: Profile, home: Path) -> str:
    profiles: Mapping[str, Profile] = {profile.kind: profile, "bench": FakeProfile()}
    found = find(Settings(home=home, profiles=(), stages=()), profiles)
    assert [seat.name for seat in found.seats] == ["local", "bench"]
    (why,) = found.missing
    return why


@pytest.mark.parametrize("fault", [ValueError("no"), SystemExit(3), KeyboardInterrupt(), RecursionError()])
def test_a_probe_that_raises(tmp_path: Path, fault: BaseException) -> None:
    assert _missing(Raising(fault), tmp_path).startswith(f"raising: the probe failed: {type(fault).__name__}")


def test_a_probe_that_finds_what_is_no_seat(tmp_path: Path) -> None:
    assert "lying: what it found is no seat" in _missing(Lying(), tmp_path)
    assert "misnaming: what it found is no seat" in _missing(Misnaming(), tmp_path)


def test_a_probe_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "SECONDS", 0.3)
    assert "took longer" in _missing(Hanging(), tmp_path)


def test_the_seats_file_reaches_the_probe(tmp_path: Path) -> None:
    (tmp_path / "seats.toml").write_text("[bench]\nlanes = 7\n")
    found = find(Settings(home=tmp_path, profiles=(), stages=()), {"bench": FakeProfile()})
    seat: Json = found.seats[1].offer
    assert seat.lanes == 7
