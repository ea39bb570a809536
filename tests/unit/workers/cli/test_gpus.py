"""What `gridq gpus` prints of a device."""

from __future__ import annotations

import time
from typing import Any

import pytest

from gridq.seats.registry import LiveSeat
from workers.cli.gpus import describe_seat, make_gpus_table


def seat(state: str = "ready", reason: str = "", **details: Any) -> LiveSeat:
    return LiveSeat(
        seat="bigmama.gpu0", machine="bigmama", worker="gpu0@bigmama", incarnation="1", kind="gpu",
        concurrency=4, queues=["gpu:cuda"], state=state, reason=reason, details=details,
        capability={"device": "gpu0", "name": "RTX 5090", "backend": "cuda", "compute_cap": "12.0"},
    )  # fmt: skip


DEVICE: dict[str, Any] = {
    "memory_mb": 32 * 1024, "allocated_mb": 6144, "used_mb": 5120, "orphan_mb": 1024, "foreign_mb": 2048,
    "free_mb": 23 * 1024, "reserved_mb": 1024, "utilisation": 0.5, "temperature": 61.0, "power_watts": 320.4,
    "faults": ["Xid 48, see NVIDIA's list of Xid errors"], "unknown": {},
}  # fmt: skip


@pytest.fixture(autouse=True)
def _just_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DEVICE, "read_at", time.time())


def columns_of(*seats: LiveSeat) -> dict[str, str]:
    """Return the cells of the last row by column."""
    table = make_gpus_table(seats)
    return {str(column.header): str(list(column.cells)[-1]) for column in table.columns}


def test_a_device_shows_its_memory_by_use_in_gb() -> None:
    cells = columns_of(seat(device=DEVICE))
    assert [cells[name] for name in ("allocated", "used", "orphan", "foreign", "free", "of")] == [
        "6.0", "5.0", "1.0", "2.0", "23.0", "32.0",
    ]  # fmt: skip
    assert (cells["busy"], cells["°C"], cells["W"]) == ("50%", "61", "320")
    assert cells["device"] == "RTX 5090"


def test_models_show_their_last_use_and_by_whom() -> None:
    models = [
        {"name": "qwen3-8b", "memory_mb": 5120, "running": 2, "used_at": time.time(), "agent": "ann"},
        {"name": "gemma", "memory_mb": 1024, "running": 0, "used_at": time.time() - 130, "agent": "bob"},
        {"name": "served-by-another"},
    ]
    processes = [
        {"pid": 5, "name": "python3", "memory_mb": 5120, "whose": "ours"},
        {"pid": 6, "name": "python3", "memory_mb": 1024, "whose": "orphan"},
        {"pid": 7, "name": "blender", "memory_mb": None, "whose": "foreign"},
    ]
    loading = {"llm:big": {"model": "big", "share": 0.4}, "llm:new": {"model": "new", "share": None}}
    stages = [
        {"name": "train", "memory_mb": 8192, "agent": "eve", "protected": True, "began_at": time.time() - 130}
    ]
    details = {"models": models, "processes": processes, "loading": loading, "stages": stages}
    shown = columns_of(seat(device=DEVICE, **details))["models, processes, state"].splitlines()
    assert shown == [
        "loading big, 40%",
        "loading new",
        "qwen3-8b 5.0 GB, in use by ann",
        "gemma 1.0 GB, used by bob 2 min ago",
        "served-by-another",
        "train 8.0 GB, agent eve, 2 min, protected",
        "orphan: python3 6, 1.0 GB",
        "foreign: blender 7",
        "Xid 48, see NVIDIA's list of Xid errors",
    ]


def test_what_a_driver_does_not_tell_is_a_dash_and_an_old_reading_is_said_to_be_old() -> None:
    bare = columns_of(seat("unreachable", "the GPU is not there"))
    assert {bare[name] for name in ("allocated", "used", "free", "of", "busy", "°C", "W")} == {"-"}
    assert "the GPU is not there" in bare["models, processes, state"]
    old = {**DEVICE, "utilisation": None, "read_at": time.time() - 200, "faults": []}
    cells = columns_of(seat(device=old))
    assert cells["busy"] == "-"
    assert cells["models, processes, state"] == "read 3 min ago"


def test_json_has_the_device_and_all_that_is_known() -> None:
    assert describe_seat(seat())["device"] is None, "its worker has told nothing yet"
    row = describe_seat(seat(device=DEVICE, models=[]))
    assert (row["seat"], row["backend"], row["compute_cap"]) == ("bigmama.gpu0", "cuda", "12.0")
    assert row["device"] == DEVICE
