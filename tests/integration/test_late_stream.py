"""An attempt whose lease lapsed before its pieces were in the stream: another one begins the answer."""

from __future__ import annotations

from redis.exceptions import ConnectionError

from gridq.profiles.profile import StageContext
from gridq.protocol.models import Json, Usage
from tests.integration.test_cancel import ECHO, OneSlot, slot
from tests.integration.test_piece_writer import Server, read_pieces
from tests.waiting import wait_for

__all__ = ["slot"]


def test_a_stream_never_ends_without_its_pieces(slot: OneSlot) -> None:
    """Found by gridq chaos: the server was away when the pieces came, and the worker then stood still for
    longer than a lease. Its result was recorded, and the client read the end of an empty answer.
    """
    server = Server(slot.grid.scripts)
    server.fault = ConnectionError("away")
    attempts: list[int] = []

    def act(value: Json, context: StageContext) -> Json:
        slot.runner.act = act  # for the next attempt
        attempts.append(context.attempt)
        context.report(Usage(micro_dollars=None, tokens_in=len(attempts), tokens_out=1))
        context.emit(f"first of {context.attempt}", "second")
        return f"answer {context.attempt}"

    slot.runner.act = act
    job = slot.client.submit(ECHO, None, stream=True)
    wait_for(lambda: server.batches)
    (lease,) = slot.redis.zrange(slot.keys("leases"), 0, -1)

    def has_lapsed() -> bool:
        """Let the lease lapse, as often as it is renewed, until the sweep has returned the stage."""
        slot.redis.zadd(slot.keys("leases"), {lease: 1}, xx=True)
        return not slot.redis.zscore(slot.keys("leases"), lease)

    wait_for(has_lapsed)
    server.fault = None
    assert slot.client.result(job, timeout=20) == "answer 2"
    assert read_pieces(slot.grid.scripts, job) == [b'"first of 2"', b'"second"', b"end"]
    assert attempts == [1, 2]
