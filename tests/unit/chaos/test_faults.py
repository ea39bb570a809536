"""Parts that a fault may remove for good."""

from __future__ import annotations

from pathlib import Path

from gridq.config.settings import Settings
from tests.chaos.faults import is_dispensable
from tests.chaos.grid import Part
from tests.chaos.proxy import Proxy
from workers.supervisor import programs


def part(folder: Path, name: str, sort: str) -> Part:
    program = programs.make_seat_worker(Settings(home=folder), name, folder, {}, 1.0)
    return Part(name, sort, "m", program, Proxy(("127.0.0.1", 1)), name)


def test_two_parts_of_each_kind_and_the_protected_ones_stay(tmp_path: Path) -> None:
    parts = [part(tmp_path, name, name[0]) for name in ("a1", "a2", "a3", "b1", "b2")]

    def gone(*always_restarted: str) -> list[str]:
        return [each.name for each in parts if is_dispensable(each, parts, always_restarted)]

    assert gone() == ["a1", "a2", "a3"]
    assert gone("a3") == ["a1", "a2"]
    parts[0].gone = True
    assert gone() == []
