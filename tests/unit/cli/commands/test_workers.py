"""The tables of `gridq workers` and `gridq seats`."""

from __future__ import annotations

import io
import re
import time

from rich.console import Console

from gridq.cli.commands.workers import format_state, make_full_table, make_seats_table, make_shared_table
from gridq.cli.output import format_local_time
from gridq.protocol.meters import Meter
from gridq.seats.registry import LiveSeat


def test_seats_fit_a_narrow_terminal() -> None:
    seat = LiveSeat(
        seat="a-rather-long-machine-name-1f2e.cpu",
        machine="a-rather-long-machine-name-1f2e",
        worker="cpu@a-rather-long-machine-name-1f2e",
        incarnation="x",
        kind="gpu",
        concurrency=4,
        queues=["llm:smollm2-135m-instruct", "llm:any"],
        state="degraded",
        reason="the engine does not answer [2]",
        busy=2,
        meters=[Meter(account="own", resource="money", window="month", limit=2_000_000, used=500_000)],
        metrics={"free_mb": 512.0},
        started_at=time.time() - 7300,
    )
    for table, parts in (
        (make_seats_table, ("2/4", "2 h", "llm:any", "[2]")),
        (make_full_table, ("2/4", "$1.50", "$2.00", "[2]", "free_mb 512")),
    ):
        screen = Console(file=io.StringIO(), width=80, markup=False)
        screen.print(table([seat]))
        text = screen.file.getvalue()  # type: ignore[attr-defined]
        assert max(map(len, text.splitlines())) <= 80
        for part in parts:
            assert part in text
    flat = seat.model_copy(update={"meters": []})
    flat = flat.model_copy(update={"capability": {"billing": "subscription"}})
    screen = Console(file=io.StringIO(), width=80)
    screen.print(make_full_table([flat]))
    text = screen.file.getvalue()  # type: ignore[attr-defined]
    assert "subscription" in text
    assert "$" not in text
    assert format_state(seat) == "degraded: the engine does not answer [2]"
    since = seat.model_copy(update={"since": seat.started_at, "until": time.time() + 60})
    assert format_state(since).startswith(
        f"degraded since {format_local_time(since.since)} until {format_local_time(since.until or 0)}: "
    )


def test_shared_budgets_are_listed_once() -> None:
    whole = Meter(account="g", resource="money", window="day", limit=9_000_000, used=500_000)
    owner = Meter(account="o:alice", resource="parallel", window="-", limit=3, reserved=1)
    family = Meter(account="f:meta%2Fllama", resource="requests", window="5h", limit=9, queues=("llm:any",))
    own = Meter(account="own", resource="tokens", window="week", limit=70)

    def seat(name: str, *meters: Meter) -> LiveSeat:
        return LiveSeat(
            seat=name, machine="m", worker=name, incarnation="x", kind="llm", concurrency=1,
            queues=["llm:any"], state="ready", busy=0, meters=list(meters), started_at=1.0,
        )  # fmt: skip

    seats = [seat("m.a", own, whole, owner, family), seat("m.b", whole, owner), seat("m.c", whole)]
    assert make_shared_table([seat("m.a", own)]) is None
    shared = make_shared_table(seats)
    assert shared is not None
    screen = Console(file=io.StringIO(), width=100, markup=False)
    screen.print(make_full_table(seats))
    screen.print(shared)
    text = screen.file.getvalue()  # type: ignore[attr-defined]
    assert text.count("$8.50 left of $9.00 a day") == 1
    assert re.search(r"^the whole grid .* every seat *$", text, re.M)
    assert re.search(r"^owner alice +2 stages left of 3 stages at once +- +m\.a *\n +m\.b *$", text, re.M)
    assert re.search(
        r"^family meta/llama +9 requests left of 9 requests in 5h +- +m\.a in llm:any *$", text, re.M
    )
    assert text.count("70 tokens left of 70 tokens a week") == 1
