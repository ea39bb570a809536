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

from gridq.errors import ConfigError, SeatUnavailable
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


def test_a_negative_entry_gives_no_memory(book: DeviceBook, tmp_path: Path):
    reserve(book, 100)
    path = tmp_path / "GPU-1.json"
    path.write_text(path.read_text().replace("100", "-9000"))
    assert isinstance(reserve(book, 10_000), Refusal)
    assert book.read() == []


def test_books_that_others_could_write_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(device_book.BOOKS_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    folder = tmp_path / "gridq"
    assert device_book.find_books_folder() == folder
    book = DeviceBook("GPU-1")
    assert isinstance(reserve(book, 1), Reservation)
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o777)
    for read in (device_book.find_books_folder, book.read):
        with pytest.raises(ConfigError):
            read()
    with pytest.raises(SeatUnavailable, match="cannot be written"):  # not the fault of who asks for a model
        reserve(book, 1)


def test_nothing_is_left_on_the_disk_of_the_last_reservation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(device_book.BOOKS_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    books = DeviceBook("GPU-1"), DeviceBook("cpu")
    assert books[0].read() == []
    assert list(tmp_path.iterdir()) == []
    assert isinstance(reserve(books[0], 2000), Refusal)
    assert list(tmp_path.iterdir()) == []
    first, second = (reserve(book, 600) for book in books)
    assert isinstance(first, Reservation)
    assert isinstance(second, Reservation)
    first.release()
    assert {file.name for file in (tmp_path / "gridq").iterdir()} == {"cpu.json", "cpu.json.lock"}
    second.release()
    second.release()
    assert list(tmp_path.iterdir()) == []


TAKE_TURNS = """
import sys
from workers.profiles.gpu.memory.device_book import DeviceBook, Reservation
book, got = DeviceBook("GPU-1"), 0
print("ready", flush=True)
sys.stdin.readline()
for _ in range(300):
    found = book.reserve(600, total_mb=1000, free_mb=None, holder="a", model="m")
    if isinstance(found, Reservation):
        got += 1
        entries = book.read()
        assert len(entries) == 1, entries
        found.release()
print(got)
"""


def test_books_that_come_and_go_promise_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Four processes reserve and release, and each release removes the file, its lock and the folder."""
    monkeypatch.delenv(device_book.BOOKS_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    command = [sys.executable, "-c", TAKE_TURNS]
    pipe = subprocess.PIPE
    started = [subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) for _ in range(4)]
    try:
        assert [each.stdout.readline() for each in started if each.stdout] == ["ready\n"] * 4
        for each in started:
            assert each.stdin is not None
            each.stdin.write("\n")
            each.stdin.flush()
        for each in started:
            out, err = each.communicate(timeout=60)
            assert each.returncode == 0, err
            assert int(out) > 0
    finally:
        for each in started:
            each.kill()
            if each.stdout and not each.stdout.closed:
                each.communicate()
    assert list(tmp_path.iterdir()) == []


def test_an_entry_is_void_at_once_when_a_process_ends(book: DeviceBook, other: Any):
    process, _ = other(1000)
    assert isinstance(reserve(book, 1), Refusal)
    process.terminate()
    wait_for(lambda: isinstance(reserve(book, 1), Reservation), 5)


def test_a_book_that_cannot_be_written_fails_loads_alone_and_keeps_nothing_for_good(
    book: DeviceBook, tmp_path: Path
):
    """Somebody put a folder where the lock is; a full disk and a lost permission are the same."""
    first = reserve(book, 600)
    assert isinstance(first, Reservation)
    lock = tmp_path / "GPU-1.json.lock"
    lock.unlink()
    lock.mkdir()
    first.settle(500, None)
    first.release()
    with pytest.raises(SeatUnavailable) as caught:
        reserve(book, 1)
    assert str(lock) in str(caught.value.reason)
    assert caught.value.fix
    lock.rmdir()
    assert isinstance(reserve(book, 1000), Reservation)
