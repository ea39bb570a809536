"""Rules that are written in Lua and again for the forecast: one table of cases, run through both.

Whether the budgets of a seat have room for a stage: store/lua/lib/meters.lua, and `list_needs` and
`SeatLoad.find_room`. The order of stages: `test_position_matches_the_order_of_the_scripts` in
test_start_check.py.
"""

from __future__ import annotations

import pytest

from gridq.app import app
from gridq.messaging import wake_ups
from gridq.protocol.meters import UsageEstimate
from gridq.store.replies import Claim
from gridq.submission.queue_snapshot import BudgetRoom, StageRequest, read_snapshot
from tests.conftest import GridEnv
from tests.unit.store.plans import ANY, Grid, one

LATER = 4_102_444_800_000
"""2100, in ms: no window in this table resets before."""

DOLLAR_A_TOKEN = (1_000_000_000_000, 1_000_000_000_000)
MICRO_A_TOKEN = (1_000_000, 1_000_000)

# The seat's own budget; the stage's cost and tokens; the seat's prices; whether it has room.
ROOM = {
    "no budget": ("", 10_000, (5, 5), MICRO_A_TOKEN, True),
    "money is left": (f"money/month/30000/20000/0/{LATER}", 10_000, (0, 0), (0, 0), True),
    "money is used": (f"money/month/30000/20001/0/{LATER}", 10_000, (0, 0), (0, 0), False),
    "money is reserved": (f"money/month/30000/10000/10001/{LATER}", 10_000, (0, 0), (0, 0), False),
    "a free stage needs no money": (f"money/day/30000/30000/0/{LATER}", 0, (0, 0), (0, 0), True),
    "unless the budget is exceeded": (f"money/day/30000/30001/0/{LATER}", 0, (0, 0), (0, 0), False),
    "the estimate fits": (f"money/day/30000/20000/0/{LATER}", 0, (5_000, 5_000), MICRO_A_TOKEN, True),
    "the estimate is too high": (f"money/day/30000/20000/0/{LATER}", 0, (5_001, 5_000), MICRO_A_TOKEN, False),
    "an estimate over the limit runs in an empty window": (
        f"money/day/30000/0/0/{LATER}", 0, (1, 0), DOLLAR_A_TOKEN, True,
    ),
    "and only there": (f"money/day/30000/1/0/{LATER}", 0, (1, 0), DOLLAR_A_TOKEN, False),
    "a cost over the limit never fits": (f"money/day/30000/0/0/{LATER}", 100_000, (0, 0), (0, 0), False),
    "tokens are left": (f"tokens/day/1000/900/0/{LATER}", 0, (60, 40), (0, 0), True),
    "tokens are used": (f"tokens/day/1000/901/0/{LATER}", 0, (60, 40), (0, 0), False),
    "tokens over the limit run in an empty window": (
        f"tokens/day/1000/0/0/{LATER}", 0, (5_000, 0), (0, 0), True,
    ),
    "a request is left": (f"requests/5h/2/1/0/{LATER}", 0, (0, 0), (0, 0), True),
    "the last request is reserved": (f"requests/5h/2/1/1/{LATER}", 0, (0, 0), (0, 0), False),
    "a slot of the limit is free": ("parallel/-/2/0/1/", 0, (0, 0), (0, 0), True),
    "no slot of the limit is free": ("parallel/-/2/0/2/", 0, (0, 0), (0, 0), False),
    "a window that has reset is empty": ("money/day/30000/30000/0/1", 10_000, (0, 0), (0, 0), True),
    "the tightest of two": (
        f"money/day/30000/0/0/{LATER} tokens/day/10/10/0/{LATER}", 10_000, (0, 0), (0, 0), False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ROOM)
def test_the_forecast_and_the_claim_agree_on_the_room_in_budgets(grid_env: GridEnv, case: str) -> None:
    budget, cost, tokens, prices, has_room = ROOM[case]
    grid = Grid(grid_env.client, grid_env.settings)
    wake_ups.write_templates(app, grid.client, grid.keys)
    grid.seat(concurrency=4, prices=prices)
    if budget:
        grid.client.hset(grid.keys("seat", "m.a"), "own", budget)
    (seat,) = read_snapshot(grid.client, grid.keys, 600.0).seats
    request = StageRequest(ANY, "ann", cost=cost, expects=UsageEstimate(*tokens))
    assert (seat.find_room(request, grid.now()) == BudgetRoom(0.0, is_reserved=False)) is has_room
    grid.job(one(cost=cost), more={"tokens:0": f"{tokens[0]} {tokens[1]}"})
    assert isinstance(grid.claim(), Claim) is has_room
