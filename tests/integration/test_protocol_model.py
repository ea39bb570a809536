"""Call the scripts in any order, late and repeatedly, and check the invariants after each call.

The calls are the same each time, unless `GRIDQ_MODEL=long` searches longer and with a new seed.
"""

from __future__ import annotations

import itertools
import random
import time
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant

from gridq.limits.ledger_verification import verify
from gridq.protocol.queue_names import PURE
from gridq.protocol.seat_states import Unavailable, format_unavailable
from gridq.store.replies import Claim, read_claim
from gridq.views.audit import find_breaches, find_keys_without_ttl
from tests import machines
from tests.conftest import GridEnv
from tests.model.entering import Entering
from tests.model.submitting import act, picks
from tests.model.trees import NONE, ONE, TWO, Tree, trees
from tests.pieces import emit
from tests.unit.store.plans import HOUR, usage

SEATS = {"m.a": (2, 1_000_000, (ONE, TWO)), "m.b": (1, 50_000, (ONE,)), "m.c": (1, None, (TWO, PURE))}
"""Slots, budget and queues."""

REPEATED: dict[str, tuple[Any, ...]] = {
    "complete": (0, -1), "fail": (b"fenced",), "stop": (b"over",), "admit": (b"known", b"same", b"conflict"),
    "enqueue": (b"known", b"same", b"conflict"),
}  # fmt: skip
"""Allowed replies to a repeated call."""

seats = st.sampled_from(sorted(SEATS))


class Protocol(Entering):
    """Three seats. Any lease ever granted may be reported at any time, and again."""

    def __init__(self, env: GridEnv, number: int) -> None:
        super().__init__(env, number)
        self.leases: list[str] = []
        self.used: dict[str, int] = {}
        self.outputs: dict[str, bytes] = {}
        self.emitted: dict[str, int] = {}
        self.incarnations = dict.fromkeys(SEATS, "i0")

    @initialize(tree=trees)
    def start(self, tree: Tree) -> None:
        for seat in SEATS:
            self.register(seat, same=True, host="h1")
        self.admitted(tree, "j0", "ann", celery=True, stream=True)

    # -- seats -----------------------------------------------------------------------------------------------

    @act(
        6,
        seat=seats,
        what=st.sampled_from(
            ["new", "new", "same", "moved", "silent", "renew", "drain", "go", "stop", "back"]
        ),
    )
    def at_a_seat(self, seat: str, what: str) -> None:
        """Let a worker start, move, die, renew, drain or leave, or an operator drain it or undo that."""
        if what in ("new", "same", "moved"):
            self.register(seat, same=what == "same", host="h2" if what == "moved" else "h1")
        elif what == "silent":
            self.grid.client.zadd(self.grid.keys("seats"), {seat: 1}, xx=True)
        elif what in ("drain", "go"):
            self.grid.scripts.leave(seat, self.incarnations[seat], what)
        elif what == "stop":
            self.grid.client.set(self.grid.keys("drain", seat), "1", ex=1000)
        elif what == "back":
            self.grid.client.delete(self.grid.keys("drain", seat))
        if what in ("renew", "stop", "back"):
            self.renew(seat)

    @act(
        2, seat=seats, state=st.sampled_from(["key_refused", "rate_limited", "paused"]),
        seconds=st.sampled_from([5, 10 * HOUR]), ago=st.sampled_from([0, 60]),
    )  # fmt: skip
    def rest(self, seat: str, state: str, seconds: int, ago: int) -> None:
        """Make a seat unavailable: as a whole, or for one of its queues."""
        now = time.time()
        why = Unavailable(state, "", now - ago, now + seconds)
        concurrency, budget, queues = SEATS[seat]
        inc = self.incarnations[seat]
        if queues[1:] and seconds == 5:
            unavailable = format_unavailable([(queues[:1], why)])
            self.grid.seat(
                seat, *queues[1:], inc=inc, concurrency=concurrency, budget=budget, unavailable=unavailable
            )
        else:
            self.grid.scripts.leave(seat, inc, "drain", format_unavailable([(queues, why)]))

    def register(self, seat: str, *, same: bool, host: str) -> None:
        concurrency, budget, queues = SEATS[seat]
        inc = self.incarnations[seat] if same else f"i{next(self.numbers)}"
        if self.grid.seat(seat, *queues, inc=inc, host=host, concurrency=concurrency, budget=budget) is None:
            self.incarnations[seat] = inc

    def renew(self, seat: str) -> None:
        mine = [lease for lease in self.leases if self.grid.holders[lease][0] == seat]
        lost = self.grid.scripts.renew(seat, self.incarnations[seat], mine)
        if lost is not None:
            assert set(mine) - set(lost) == set(self.grid.held(seat).values())

    # -- attempts --------------------------------------------------------------------------------------------

    @act(6, used=st.integers(0, 3_000))
    def fill(self, used: int) -> None:
        """Let every slot claim a stage."""
        for seat, (concurrency, _, _) in SEATS.items():
            for slot in range(concurrency):
                self.claim(seat, slot, used, old=False)

    @act(3, seat=seats, slot=st.integers(0, 1), used=st.integers(0, 3_000), old=st.booleans())
    def claim(self, seat: str, slot: int, used: int, old: bool) -> None:
        inc = "old" if old else self.incarnations[seat]
        before = self.grid.held(seat).get(str(slot))
        found = self.grid.claim(seat, str(slot), inc)
        if isinstance(found, Claim):
            assert not old
            # the lease of a job that has ended stands until a call comes to it; the slot gives it up itself
            assert before in (None, found.lease) or before.partition(":")[0] not in self.live()
            self.keep(found, used)

    @act(
        4,
        lambda self: self.leases,
        pick=picks,
        output=st.sampled_from([b"true", b"false", b"1", b"@"]),
        go_on=st.booleans(),
    )
    def complete(self, pick: random.Random, output: bytes, go_on: bool) -> None:
        lease = pick.choice(self.some_lease())
        if output == b"@":
            output += lease.encode()
        output = self.outputs.setdefault(lease, output)
        result, _, after = self.completed(lease, output, go_on=go_on)
        if result == 1:
            again, _, same = self.completed(lease, output, go_on=go_on)
            assert again == 0
            if isinstance(after, Claim):
                assert isinstance(same, Claim)
                assert same.lease == after.lease

    def completed(self, lease: str, output: bytes, go_on: bool) -> tuple[int, str, Claim | str]:
        seat, inc, slot = self.grid.holders[lease]
        self.write(output)
        result = self.grid.scripts.complete(
            lease, output, used=usage(self.used[lease]), rows=f"done {lease}", seat=seat, incarnation=inc,
            slot=slot, nonce=self.grid.nonce(), go_on=go_on,
        )  # fmt: skip
        self.take_on(result[2], seat, inc, slot)
        return result

    def write(self, output: bytes) -> None:
        """Write a long value, as a worker does in the same round trip before the script runs."""
        if output.startswith(b"@"):
            self.grid.client.set(self.grid.keys("value", output[1:].decode()), '"long"', ex=3600)

    def take_on(self, found: Claim | str, *holder: str) -> None:
        if isinstance(found, Claim):
            seat, inc, slot = holder
            self.grid.holders[found.lease] = seat, inc, slot
            self.keep(found, 100)

    @act(
        4,
        lambda self: self.leases,
        pick=picks,
        kind=st.sampled_from(["seat", "seat", "unreached", "stage", "died", "lost", "back"]),
        pause=st.sampled_from([0, HOUR]),
        twice=st.booleans(),
        more=st.sampled_from([0, 50]),
    )
    def fail(self, pick: random.Random, kind: str, pause: int, twice: bool, more: int) -> None:
        lease = pick.choice(self.some_lease())
        row = f"{kind} {lease}"
        self.grid.fail(lease, kind, pause_ms=pause, used=self.used[lease], row=row)
        if twice:
            self.used[lease] += more  # it went on for a while after it had been handed back
            assert self.grid.fail(lease, kind, pause_ms=pause, used=self.used[lease], row=row) == "fenced"

    @act(
        8,
        lambda self: self.open(),
        pick=picks,
        outputs=st.lists(st.sampled_from([b"true", b"false"]), min_size=1, max_size=8),
    )
    def go_on(self, pick: random.Random, outputs: list[bytes]) -> None:
        """Run and complete stages for a while without a fault."""
        for output in outputs:
            self.fill(10)
            if not self.open():
                break
            lease = pick.choice(self.open())
            self.completed(lease, self.outputs.setdefault(lease, output), go_on=output == b"true")

    @act(
        4,
        lambda self: self.open(),
        pick=picks,
        kind=st.sampled_from(["seat", "unreached", "died", "lost", "lapse", "new"]),
    )
    def again_and_again(self, pick: random.Random, kind: str) -> None:
        """Let one stage meet the same fault several times, wherever it runs."""
        lease = pick.choice(self.open())
        stage = lease.rsplit(":", 2)[0]
        for _ in range(4):
            seat = self.grid.holders[lease][0]
            if kind == "lapse":
                self.grid.age("leases", lease)
                self.grid.sweep()
            elif kind == "new" and seat in SEATS:
                self.register(seat, same=False, host="h1")
            else:
                self.grid.fail(lease, kind, used=self.used[lease], row=f"{kind} {lease}")
            self.grid.wait_over()
            self.fill(5)
            found = [held for held in self.open() if held.startswith(f"{stage}:")]
            if not found:
                break
            lease = found[0]

    @act(1, lambda self: self.leases, pick=picks, pieces=st.integers(1, 2), twice=st.booleans())
    def emit(self, pick: random.Random, pieces: int, twice: bool) -> None:
        lease = pick.choice(self.some_lease())
        values = [f'"{lease} {next(self.numbers)}"' for _ in range(pieces)]
        before = self.emitted.get(lease, 0)
        if emit(self.grid.scripts, lease, "root", values, before):
            self.emitted[lease] = before + pieces
            if twice:
                assert emit(self.grid.scripts, lease, "root", values, before)

    @act(
        6, lambda self: self.open(), pick=picks,
        then=st.sampled_from(["", "sweep", "done", "done", "stage", "seat", "died", "back", "emit", "fill"]),
    )  # fmt: skip
    def lapse(self, pick: random.Random, then: str) -> None:
        """Let a lease lapse, and its attempt report too late."""
        lease = pick.choice(self.open())
        self.grid.age("leases", lease)
        if then:
            self.grid.sweep()
        if then == "fill":
            self.fill(7)
        elif then == "done":
            self.completed(lease, self.outputs.setdefault(lease, b"true"), go_on=False)
        elif then == "emit":
            emit(self.grid.scripts, lease, "root", [f'"{lease} late"'], self.emitted.get(lease, 0))
        elif then not in ("", "sweep"):
            self.grid.fail(lease, then, used=self.used[lease], row=f"{then} {lease}")

    # -- the grid --------------------------------------------------------------------------------------------

    @act(3, over=st.booleans(), gap=st.booleans())
    def sweep(self, over: bool, gap: bool) -> None:
        if over:
            self.grid.wait_over()
        if gap:
            self.grid.client.set(self.grid.keys("last_sweep"), 1)
            open_ones = {lease.decode() for lease in self.grid.client.zrange(self.grid.keys("leases"), 0, -1)}
            found, _, lost, *_ = self.grid.scripts.sweep()  # who started anew before tells of what it lost
            assert open_ones.isdisjoint(loss.lease for loss in lost), "after a gap no worker is declared dead"
            assert not found["died"]
        else:
            self.grid.sweep()

    @act(1)
    def forget(self) -> None:
        """Let the server forget its scripts and connections, as after a restart."""
        self.grid.client.script_flush()
        self.grid.client.connection_pool.disconnect()

    @act(4, lambda self: self.calls, pick=picks)
    def again(self, pick: random.Random) -> None:
        """Repeat a call, as after a lost reply, although others have acted since."""
        script, args, before = pick.choice(self.calls[-12:])
        if script == "admit" and before[0] not in (b"ok", b"begun"):
            return  # it was refused: another call may well be admitted
        if script == "take_slot":
            if self.is_repeatable(args[0], args[1]):
                self.enter(args[0], args[1])
            return
        if script == "complete":
            self.write(args[1])
        reply = self.grid.scripts.run(script, *args)
        if script == "claim":
            self.take_on(read_claim(reply), *args[:3])
        elif script == "register" and reply[0] == 1:
            self.incarnations[args[0]] = args[1]
        elif script == "complete":
            self.take_on(read_claim(reply[2]), *args[4:7])
        if script in REPEATED:
            assert (reply[0] if isinstance(reply, list) else reply) in REPEATED[script]

    # -- what must hold --------------------------------------------------------------------------------------

    @invariant()
    def consistent(self) -> None:
        wrong = find_breaches(self.grid.client, self.grid.keys)
        assert not wrong, "\n".join(wrong)

    @invariant()
    def books(self) -> None:
        budgets = {seat: budget for seat, (_, budget, _) in SEATS.items() if self.incarnations[seat] != "i0"}
        wrong = self.shadow.find_differences(budgets)
        assert not wrong, "\n".join(wrong)
        if machines.LONG:
            self.entries()

    def entries(self) -> None:
        """Check that the ledger equals the server's counters."""
        entered = verify(self.grid.client, self.grid.keys)
        assert (entered.differences, entered.notes) == ((), ())

    @invariant()
    def few_wake_ups(self) -> None:
        for queue in (ONE, TWO, PURE):
            assert self.grid.wake_ups(queue) <= 3  # the most slots that ever listen

    def teardown(self) -> None:
        """With one good seat every job ends, and nothing of it is left."""
        grid = self.grid
        self.limit(None, None, {}, lifted=True)
        self.all_depart()
        for job in self.queued():
            grid.scripts.stop(job, "cancelled", "{}")
        for seat in SEATS:
            grid.client.delete(grid.keys("drain", seat))
        for _ in range(400):
            if not self.live() and not grid.client.exists(grid.keys("long_work")):
                break
            for job, step in self.isolated():
                assert grid.scripts.quarantine("release", job, int(step), "op") == "released"
            grid.wait_over()
            grid.seat("m.z", ONE, TWO, PURE)
            for lease in list(grid.held("m.z").values()):
                self.used.setdefault(lease, 0)
                self.completed(lease, self.outputs.get(lease, b"true"), go_on=False)
            found = grid.claim("m.z")
            if isinstance(found, Claim):
                self.keep(found, 0)
                assert self.completed(found.lease, b"true", go_on=False)[0] == 1
            else:
                for lease in grid.client.zrange(grid.keys("leases"), 0, -1):
                    grid.age("leases", lease.decode())
        assert not self.live()
        self.consistent()
        self.books()
        self.entries()
        for job in self.over:
            wrong = self.shadow.find_record_differences(job)
            assert not wrong, "\n".join(wrong)
        for seat, inc in [*self.incarnations.items(), ("m.z", "i1")]:
            grid.scripts.leave(seat, inc, "go")
        grid.wait_over()
        # a stage whose seats are all unavailable waits in the first queue of its chain
        queues = (ONE, TWO, PURE, NONE)
        grid.client.delete(grid.keys("answers"), *map(grid.keys.queue, queues))
        for _ in range(400):  # what a change of limits has left may take several
            if not grid.sweep().more:
                break
        names = grid.own()
        kinds = {name.partition(":")[0] for name in names} - {"value"}
        history = {
            "result",
            "rows",
            "stream",
            "summary",
            "jobs",
            "ended_jobs",
            "spent",
            "idempotency",
            "request_times",
            "ledger",
            "served_queues",
            "gone_seats",
            "parked_mark",
        }
        assert kinds <= history | {
            "seat",
            "closed_lease",
            "virtual_time",
            "last_sweep",
            "attempts_lost",
            "wake_ups",
            "wake_up_number",
            "schema",
        }
        ends = [grid.ended(job) for job in self.over]
        answers = {f"value:{end.payload[1:].decode()}" for end in ends if end.payload.startswith(b"@")}
        assert {name for name in names if name.startswith("value:")} == answers
        assert not find_keys_without_ttl(grid.client, grid.keys.prefix)
        grid.client.unlink(*grid.client.scan_iter(f"{grid.keys.prefix}*", count=5000))

    # -- what is known ---------------------------------------------------------------------------------------

    def open(self) -> list[str]:
        return [lease for seat in SEATS for lease in sorted(self.grid.held(seat).values())]

    def some_lease(self) -> list[str]:
        """Return leases to pick from: mostly open ones, and some that are closed."""
        return self.open() * 2 + self.leases[-6:]

    def keep(self, claim: Claim, used: int) -> None:
        if claim.lease not in self.used:
            self.used[claim.lease] = used
            self.leases.append(claim.lease)


@pytest.mark.timeout(600)  # to shrink what it finds takes longer
def test_any_order_of_calls(grid_env: GridEnv) -> None:
    """Each stage is recorded once, the sums are right, and every step is in one place."""
    numbers = itertools.count()
    machines.run(lambda: Protocol(grid_env, next(numbers)), runs=100)
