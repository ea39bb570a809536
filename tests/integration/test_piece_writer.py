"""Pieces of streamed answers on their way to the server, with real sessions and a real server."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from redis.exceptions import ConnectionError, ResponseError

from gridq import errors
from gridq.execution import piece_writer
from gridq.execution.piece_writer import PieceStream, PieceWriter
from gridq.profiles.profile import StageContext
from gridq.protocol.models import Json
from gridq.store.scripts import Pieces
from tests.conftest import GridEnv
from tests.integration.test_cancel import ECHO, OneSlot, slot
from tests.unit.store.plans import Grid, one
from tests.waiting import wait_for

__all__ = ["slot"]


class Server:
    """The scripts of a real server, whose writes of pieces are noted, and can be held up or fail."""

    def __init__(self, scripts: Any) -> None:
        self.batches: list[list[Pieces]] = []
        self.open = threading.Event()
        self.open.set()
        self.fault: Exception | None = None
        self._emit_all = scripts.emit_all
        scripts.emit_all = self.emit_all

    def emit_all(self, batch: Sequence[Pieces]) -> Any:
        self.batches.append(list(batch))
        assert self.open.wait(20)
        if self.fault is not None:
            raise self.fault
        return self._emit_all(batch)


@pytest.fixture
def grid(grid_env: GridEnv) -> Grid:
    made = Grid(grid_env.client, grid_env.settings)
    made.seat("m.a", concurrency=4)
    return made


@pytest.fixture
def server_of(grid: Grid) -> Iterator[Server]:
    made = Server(grid.scripts)
    yield made
    made.open.set()


@pytest.fixture
def writer(grid: Grid, server_of: Server) -> Iterator[PieceWriter]:
    made = PieceWriter("m.a", grid.scripts)
    yield made
    server_of.open.set()
    made.stop()
    assert not made._thread.is_alive()


def start_stream(grid: Grid, number: int, fenced: list[int] | None = None) -> PieceStream:
    grid.job(one(), f"j{number}", stream=True)
    lease = grid.take(slot=str(number)).lease
    return PieceStream(lease, on_fenced=lambda: (fenced if fenced is not None else []).append(number))


def hold_write(server_of: Server, writer: PieceWriter, stream: PieceStream, piece: str) -> threading.Thread:
    """Begin the write of a piece, which ends once `server_of.open` is set. Return the thread that writes."""
    server_of.open.clear()
    thread = threading.Thread(target=writer.add, args=(stream, "root", [piece]), daemon=True)
    thread.start()
    wait_for(lambda: server_of.batches)
    return thread


def list_writes(server_of: Server) -> list[list[list[str]]]:
    return [[list(each.pieces) for each in batch] for batch in server_of.batches]


def read_pieces(keeper: Any, job: str) -> list[bytes]:
    entries = keeper.client.xrange(keeper.keys("stream", job))
    return [fields.get(b"piece", b"end") for _, fields in entries]


def test_the_first_pieces_are_written_at_once_and_together(
    grid: Grid, server_of: Server, writer: PieceWriter
) -> None:
    stream = start_stream(grid, 0)
    writer.add(stream, "root", ['"opening"', '"first"'])
    assert list_writes(server_of) == [[['"opening"', '"first"']]]
    assert read_pieces(grid, "j0") == [b'"opening"', b'"first"']


def test_no_piece_waits_while_no_write_is_under_way(
    grid: Grid, server_of: Server, writer: PieceWriter
) -> None:
    streams = [start_stream(grid, number) for number in range(2)]
    for number in range(5):
        for stream in streams:
            writer.add(stream, "root", [str(number)])
            assert not stream.waiting
    assert {len(batch) for batch in server_of.batches} == {1}
    assert writer._thread.ident is None


def test_only_pieces_between_the_first_and_the_last_wait_for_others(
    grid: Grid, server_of: Server, writer: PieceWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a write of several streams more are gathered, but not for the first pieces of a stream, nor at
    its end.
    """
    monkeypatch.setattr(piece_writer, "GATHER_SECONDS_PER_STREAM", 60.0)
    monkeypatch.setattr(piece_writer, "MAX_GATHER_SECONDS", 60.0)
    streams = [start_stream(grid, number) for number in range(3)]
    holder = hold_write(server_of, writer, streams[0], "0")
    for stream in streams[:2]:
        writer.add(stream, "root", ["1"])
    server_of.open.set()
    holder.join(20)
    wait_for(lambda: not streams[1].waiting)
    writer.add(streams[0], "root", ["2"])
    assert streams[0].waiting
    writer.add(streams[2], "root", ['"first"'])
    assert list_writes(server_of) == [[["0"]], [["1"], ["1"]], [["2"], ['"first"']]]
    writer.add(streams[1], "root", ["2"])
    assert streams[1].waiting
    writer.finish(streams[1])
    assert list_writes(server_of)[3:] == [[["2"]]]


def test_the_first_pieces_of_a_stream_that_come_during_a_write_are_in_the_next(
    grid: Grid, server_of: Server, writer: PieceWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(piece_writer, "GATHER_SECONDS_PER_STREAM", 60.0)
    monkeypatch.setattr(piece_writer, "MAX_GATHER_SECONDS", 60.0)
    streams = [start_stream(grid, number) for number in range(3)]
    holder = hold_write(server_of, writer, streams[0], "0")
    opened, server_of.open = server_of.open, threading.Event()  # for the next write
    for stream in streams[:2]:
        writer.add(stream, "root", ["1"])
    opened.set()
    holder.join(20)
    wait_for(lambda: len(server_of.batches) == 2)
    writer.add(streams[2], "root", ['"first"'])
    server_of.open.set()
    wait_for(lambda: not streams[2].waiting)
    assert list_writes(server_of) == [[["0"]], [["1"], ["1"]], [['"first"']]]


def test_pieces_of_many_streams_share_a_write(grid: Grid, server_of: Server, writer: PieceWriter) -> None:
    streams = [start_stream(grid, number) for number in range(3)]
    hold_write(server_of, writer, streams[0], "0")
    for number in range(1, 10):
        for stream in streams:
            writer.add(stream, "root", [str(number)])
    server_of.open.set()
    for stream in streams:
        writer.finish(stream)
    assert [len(batch) for batch in server_of.batches] == [1, 3]
    numbers = [b"%d" % number for number in range(10)]
    assert [read_pieces(grid, f"j{number}") for number in range(3)] == [numbers, numbers[1:], numbers[1:]]


def test_a_write_whose_reply_was_lost_adds_nothing_twice(
    grid: Grid, server_of: Server, writer: PieceWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the server is away pieces are kept, `finish` says so, and their order stays."""
    monkeypatch.setattr(piece_writer, "RETRY_SECONDS", 0.02)
    stream = start_stream(grid, 0)
    really, lose = server_of._emit_all, iter([True, False, True])

    def emit_all(batch: Sequence[Pieces]) -> Any:
        found = really(batch)
        if next(lose, False):
            raise ConnectionError("gone")
        return found

    server_of._emit_all = emit_all
    server_of.fault = ConnectionError("away")
    writer.add(stream, "root", ["0", "1"])
    wait_for(lambda: stream.error)
    with pytest.raises(ConnectionError):
        writer.finish(stream)
    writer.add(stream, "root", ["2"])
    assert len(stream.waiting) == 3
    server_of.fault = None
    for number in range(3, 20):
        writer.add(stream, "root", [str(number)])
        time.sleep(0.002)
    wait_for(lambda: not stream.waiting)
    assert read_pieces(grid, "j0") == [b"%d" % number for number in range(20)]


def test_scripts_that_the_server_forgot_are_loaded_again(
    grid: Grid, server_of: Server, writer: PieceWriter
) -> None:
    streams = [start_stream(grid, number) for number in range(2)]
    hold_write(server_of, writer, streams[0], "0")
    for stream in streams:
        writer.add(stream, "root", ["1"])
    grid.client.script_flush()
    server_of.open.set()
    for stream in streams:
        writer.finish(stream)
    assert (read_pieces(grid, "j0"), read_pieces(grid, "j1")) == ([b"0", b"1"], [b"1"])


def test_an_attempt_that_no_longer_counts_is_told_and_writes_nothing(grid: Grid, writer: PieceWriter) -> None:
    fenced: list[int] = []
    lost, good = start_stream(grid, 0, fenced), start_stream(grid, 1, fenced)
    grid.client.zrem(grid.keys("leases"), lost.lease)
    for stream in (lost, good):
        writer.add(stream, "root", ["0"])
        writer.finish(stream)
    wait_for(lambda: fenced)
    writer.add(lost, "root", ["1"])
    assert fenced == [0]
    assert not lost.waiting
    assert (read_pieces(grid, "j0"), read_pieces(grid, "j1")) == ([], [b"0"])


def test_a_stream_that_is_refused_does_not_stop_the_others(
    grid: Grid, writer: PieceWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(piece_writer, "RETRY_SECONDS", 0.02)
    bad, good = start_stream(grid, 0), start_stream(grid, 1)
    grid.client.set(grid.keys("stream", "j0"), "no stream")
    writer.add(bad, "root", ["0"])
    for number in range(5):
        writer.add(good, "root", [str(number)])
    writer.finish(good)
    wait_for(lambda: bad.error)
    with pytest.raises(ResponseError):
        writer.finish(bad)
    assert read_pieces(grid, "j1") == [b"%d" % number for number in range(5)]
    grid.client.delete(grid.keys("stream", "j0"))


def test_a_long_stream_goes_in_parts_and_lets_others_pass(
    grid: Grid, server_of: Server, writer: PieceWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(piece_writer, "MAX_WRITE_CHARACTERS", 100)
    long, short = start_stream(grid, 0), start_stream(grid, 1)
    hold_write(server_of, writer, short, "0")
    writer.add(long, "root", ['"%s"' % ("x" * 48)] * 10)
    writer.add(long, "other", ['"y"'])
    writer.add(short, "root", ["1"])
    server_of.open.set()
    writer.finish(short)
    assert long.waiting or len(server_of.batches) <= 8
    writer.finish(long)
    writes = [[(each.path, len(each.pieces)) for each in batch] for batch in server_of.batches]
    assert writes[:3] == [[("root", 1)], [("root", 2)], [("root", 1), ("root", 2)]]
    assert writes[-1] == [("other", 1)]
    assert len(read_pieces(grid, "j0")) == 11


def test_an_attempt_waits_while_too_much_of_it_is_not_written(
    grid: Grid, server_of: Server, writer: PieceWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(piece_writer, "MAX_BUFFERED_CHARACTERS", 100)
    stream, added = start_stream(grid, 0), []
    hold_write(server_of, writer, start_stream(grid, 1), "0")

    def emit() -> None:
        for number in range(100):
            writer.add(stream, "root", ['"%s"' % ("x" * 8)])
            added.append(number)

    thread = threading.Thread(target=emit, daemon=True)
    thread.start()
    wait_for(lambda: len(added) == 9)
    time.sleep(0.05)
    assert len(added) == 9
    assert stream.characters == 100
    server_of.open.set()
    thread.join(20)
    writer.finish(stream)
    assert len(read_pieces(grid, "j0")) == 100


def test_a_writer_that_stops_leaves_no_thread_and_holds_nobody(
    grid: Grid, server_of: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(piece_writer, "MAX_BUFFERED_CHARACTERS", 1)
    writer = PieceWriter("m.a", grid.scripts)
    server_of.fault = ConnectionError("away")
    stream = start_stream(grid, 0)
    threads = [
        threading.Thread(target=writer.add, args=(stream, "root", ["0"]), daemon=True),
        threading.Thread(target=writer.add, args=(stream, "root", ["1"]), daemon=True),
    ]
    for thread in threads:
        thread.start()
    wait_for(lambda: server_of.batches)
    writer.stop()
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in (*threads, writer._thread))
    with pytest.raises(ConnectionError):
        writer.finish(stream)
    PieceWriter("m.b", grid.scripts).stop()  # which never began


# -- a session's attempts


def emit_and(slot: OneSlot, end: Any) -> None:
    def act(value: Json, context: StageContext) -> Json:
        for number in range(50):
            context.emit(number)
        return end(context)

    slot.runner.act = act


@pytest.mark.parametrize("how", ["done", "failed", "timeout", "back"])
def test_all_pieces_stand_before_the_end_of_the_job(slot: OneSlot, how: str) -> None:
    emitted = threading.Event()

    def end(context: StageContext) -> Json:
        emitted.set()
        if how == "failed":
            raise errors.StageError("no")
        if how != "done":
            context.cancelled.wait(20)
            context.check()
        return "whole"

    emit_and(slot, end)
    if how == "timeout":
        slot.session.config = slot.session.config.model_copy(update={"stage_timeout": 0.3})
    job = slot.client.submit(ECHO, None, stream=True)
    assert emitted.wait(20)
    if how == "back":
        slot.session.hand_back(slot.session.running().values())
    if how == "done":
        assert slot.client.result(job, timeout=20) == "whole"
    else:
        with pytest.raises(errors.GridError) as caught:
            slot.client.result(job, timeout=20)
        codes = {"failed": "stage.failed", "timeout": "stage.timeout", "back": "stage.stream_cut"}
        assert caught.value.code == codes[how]
    assert read_pieces(slot.grid.scripts, job) == [*(b"%d" % number for number in range(50)), b"end"]


def test_a_slot_claims_nothing_while_its_stage_is_being_handed_back(slot: OneSlot) -> None:
    """Its lease is still open, so a claim would be given the same stage, and the stream a second author."""
    scripts = slot.grid.scripts
    emitted, asked, go_on = threading.Event(), threading.Event(), threading.Event()
    fail, claim, claims = scripts.fail, scripts.claim, []

    def fail_late(*args: Any, **options: Any) -> str:
        asked.set()
        assert go_on.wait(20)
        return fail(*args, **options)

    def note_claim(*args: Any) -> Any:
        claims.append(args)
        return claim(*args)

    def end(context: StageContext) -> Json:
        emitted.set()
        context.cancelled.wait(20)
        context.check()
        return "whole"

    emit_and(slot, end)
    scripts.fail = fail_late  # type: ignore[method-assign]
    job = slot.client.submit(ECHO, None, stream=True)
    assert emitted.wait(20)
    scripts.claim = note_claim  # type: ignore[method-assign]
    owner = threading.Thread(target=slot.session.hand_back, args=(list(slot.session.running().values()),))
    owner.start()
    assert asked.wait(20)
    time.sleep(0.3)
    assert not claims
    go_on.set()
    owner.join(20)
    with pytest.raises(errors.StreamCut):
        slot.client.result(job, timeout=20)


def test_a_result_waits_for_its_pieces_while_the_server_is_away(slot: OneSlot) -> None:
    server = Server(slot.grid.scripts)
    server.fault = ConnectionError("away")
    emit_and(slot, lambda context: "whole")
    job = slot.client.submit(ECHO, None, stream=True)
    wait_for(lambda: len(server.batches) >= 2)
    assert slot.count_running() == 1
    assert read_pieces(slot.grid.scripts, job) == []
    server.fault = None
    assert slot.client.result(job, timeout=20) == "whole"
    assert read_pieces(slot.grid.scripts, job) == [*(b"%d" % number for number in range(50)), b"end"]


def test_a_lost_lease_cancels_an_attempt_that_streams(slot: OneSlot) -> None:
    slot.session._checker.stop()
    cancelled = threading.Event()

    def act(value: Json, context: StageContext) -> Json:
        slot.redis.delete(slot.keys("leases"))
        context.emit("late")
        if context.cancelled.wait(20):
            cancelled.set()
        context.check()
        return value

    slot.session._renewer.stop()
    slot.runner.act = act
    slot.client.submit(ECHO, None, stream=True)
    assert cancelled.wait(20)


def test_the_opening_and_the_first_word_are_one_write(slot: OneSlot) -> None:
    server = Server(slot.grid.scripts)

    def act(value: Json, context: StageContext) -> Json:
        context.drop_field("seed")
        context.emit("opening", "first")
        return value

    slot.runner.act = act
    job = slot.client.submit(ECHO, "whole", stream=True)
    assert slot.client.result(job, timeout=20) == "whole"
    (((lease, path, before, dropped, pieces),),) = server.batches
    assert lease.startswith(job)
    assert (path, pieces, before, dropped) == ("root", ['"opening"', '"first"'], 0, ("seed",))


def test_a_stopped_session_leaves_no_thread(slot: OneSlot) -> None:
    writer = slot.session._piece_writer
    with writer._lock:
        writer._wake_thread()
    assert "pieces m.a" in {thread.name for thread in threading.enumerate()}
    slot.session.stop(0)
    assert "pieces m.a" not in {thread.name for thread in threading.enumerate()}
