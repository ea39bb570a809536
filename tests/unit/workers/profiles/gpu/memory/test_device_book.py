"""Reservations of a device's memory, over processes and homes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gridq.errors import ConfigError
from tests.waiting import wait_for
from workers.profiles.gpu.memory import device_book
from workers.profiles.gpu.memory.device_book import DeviceBook, Refusal, Reservation

RESERVE = """
import sys, time
from pathlib import Path
from workers.profiles.gpu.memory.device_book import DeviceBook, Reservation
found = DeviceBook("GPU-1", Path(sys.argv[1])).reserve(
    int(sys.argv[2]), total_mb=1000, free_mb=None, holder=sys.argv[3], model="m")
print(type(found).__name__, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def book(tmp_path: Path) -> DeviceBook:
    return DeviceBook("GPU-1", tmp_path)


def reserve(book: DeviceBook, mb: int, **fields: Any) -> Reservation | Refusal:
    return book.reserve(mb, **{"total_mb": 1000, "free_mb": None, "holder": "a", "model": "m", **fields})


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Any]:
    """A function that reserves in another process. It returns the process and what it got."""
    started: list[subprocess.Popen[str]] = []

    def start(mb: int) -> tuple[subprocess.Popen[str], str]:
        process = subprocess.Popen(
            [sys.executable, "-c", RESERVE, str(tmp_path), str(mb), f"home{len(started)}"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append(process)
        assert process.stdout is not None
        return process, process.stdout.readline().strip()

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_memory_is_promised_once(book: DeviceBook):
    first = reserve(book, 600)
    assert reserve(book, 600) == Refusal(600, 400, 1000)
    assert isinstance(first, Reservation)
    first.release()
    first.release()
    assert isinstance(reserve(book, 600), Reservation)


def test_other_processes_and_homes_see_a_reservation(book: DeviceBook, other: Any):
    process, got = other(600)
    assert got == "Reservation"
    assert other(600)[1] == "Refusal"
    assert reserve(book, 500) == Refusal(500, 400, 1000)
    process.kill()
    process.communicate()
    assert isinstance(reserve(book, 500), Reservation), "the entry of a dead process is void"


def test_simultaneous_loads_never_promise_more_than_there_is(tmp_path: Path):
    books = [DeviceBook("GPU-1", tmp_path) for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda number: reserve(books[number % 8], 90, holder=str(number)), range(40)))
    assert sum(isinstance(each, Reservation) for each in found) == 11
    assert sum(each["mb"] for each in books[0].read()) == 990


def test_a_process_id_that_is_used_again_keeps_nothing(book: DeviceBook, tmp_path: Path):
    reserve(book, 600)
    path = tmp_path / "GPU-1.json"
    content = json.loads(path.read_text())
    for entry in content["entries"].values():
        entry["owner"][1] = "1"  # it began at another time
    path.write_text(json.dumps(content))
    assert book.read() == []


def test_a_loaded_model_holds_its_memory_until_its_own_process_is_gone(book: DeviceBook):
    """Its worker may be gone first: what counts is who has the memory."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    found = reserve(book, 600)
    assert isinstance(found, Reservation)
    found.settle(550, child.pid)
    assert [(each["mb"], each["is_loaded"]) for each in book.read()] == [(550, True)]
    child.kill()
    child.communicate()
    assert book.read() == []


def test_the_driver_may_say_less_than_the_books(book: DeviceBook):
    """Another program uses the card: 300 MB are free, whatever gridq has reserved."""
    assert reserve(book, 400, free_mb=300) == Refusal(400, 300, 1000)


def test_what_others_have_reserved_and_not_yet_taken_is_not_free(book: DeviceBook):
    first = reserve(book, 300)
    assert isinstance(first, Reservation)
    first.assign(1)
    refused = reserve(book, 450, free_mb=600, measure=lambda pid: 100)
    assert refused == Refusal(450, 400, 1000)


def test_the_owners_limit_binds_one_seat(book: DeviceBook):
    assert isinstance(reserve(book, 300, cap_mb=400), Reservation)
    assert reserve(book, 200, cap_mb=400) == Refusal(200, 100, 400)
    assert isinstance(reserve(book, 200, cap_mb=400, holder="b"), Reservation)


@pytest.mark.parametrize("text", ["", "nonsense", "[]", '{"entries": 3}', '{"entries": {"a": {"mb": "x"}}}'])
def test_a_damaged_book_is_begun_anew(book: DeviceBook, tmp_path: Path, text: str):
    (tmp_path / "GPU-1.json").write_text(text)
    assert isinstance(reserve(book, 100), Reservation)
    assert len(book.read()) == 1


def test_books_that_others_could_write_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(device_book.BOOKS_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert device_book.find_books_folder() == tmp_path / "gridq" / "devices"
    (tmp_path / "gridq").chmod(0o777)
    with pytest.raises(ConfigError):
        device_book.find_books_folder()


def test_an_entry_is_void_at_once_when_a_process_ends(book: DeviceBook, other: Any):
    process, _ = other(1000)
    assert isinstance(reserve(book, 1), Refusal)
    process.terminate()
    wait_for(lambda: isinstance(reserve(book, 1), Reservation), 5)
