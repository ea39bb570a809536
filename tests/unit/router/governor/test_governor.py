"""Seats read and ranked by the governor, and the order in which they are woken, on a real server."""

from __future__ import annotations

import pytest

from gridq.app import app
from gridq.messaging import wake_ups
from gridq.protocol.models import Limit
from gridq.router.governor.governor import Governor
from tests.conftest import GridEnv
from tests.unit.store.limits import limit, turn_at
from tests.unit.store.plans import ANY, HOUR, Grid, one

pytestmark = pytest.mark.usefixtures("key_hygiene")

HAIKU = "llm:haiku"
CLAUDE = {ANY: ["claude"], HAIKU: ["claude"]}


@pytest.fixture
def grid(grid_env: GridEnv) -> Grid:
    made = Grid(grid_env.client, grid_env.settings)
    wake_ups.write_templates(app, made.client, made.keys)
    return made


def window(grid: Grid, seat: str, kind: str, left: int, ends_in: float, resource: str = "requests") -> None:
    """A seat's own sheet: of a hundred `left` are left, until so many hours from now."""
    turn = grid.now() + int(ends_in * HOUR)
    grid.client.hset(grid.keys("seat", seat), "own", f"{resource}/{kind}/100/{100 - left}/0/{turn}")


def ranked(grid: Grid, queue: str = ANY) -> list[str]:
    """The seats of a queue as the governor ranks them, best first; those with like ranks by name."""
    Governor(grid.scripts).rank_seats()
    names = [name.decode() for name in grid.client.zrange(grid.keys("rank", queue), 0, -1)]
    return [name for name in names if name != "*"]


def list_woken_seats(grid: Grid, *seats: str) -> list[str]:
    """Return the seats in the order in which one stage each wakes; they become idle in the given order."""
    for seat in seats:
        assert grid.claim(seat) == "none"
    grid.clear(ANY, *(f"seat:{seat}" for seat in seats))
    order: list[str] = []
    jobs = []
    for _ in seats:
        jobs.append(grid.job(one()))
        order += [seat for seat in seats if seat not in order and grid.wake_ups(f"seat:{seat}")]
    for job in jobs:
        grid.scripts.stop(job, "cancelled", "{}")
    return order


def test_the_seat_whose_window_ends_soon_is_woken_first(grid: Grid) -> None:
    for seat in ("m.a-month", "m.b-week", "m.c-hours"):
        grid.seat(seat)
    window(grid, "m.a-month", "30d", 95, 29 * 24)
    window(grid, "m.b-week", "7d", 80, 4 * 24)
    window(grid, "m.c-hours", "5h", 60, 1)
    assert list_woken_seats(grid, "m.a-month", "m.b-week", "m.c-hours") == [
        "m.a-month",
        "m.b-week",
        "m.c-hours",
    ]  # not ranked yet
    Governor(grid.scripts).rank_seats()
    assert list_woken_seats(grid, "m.a-month", "m.b-week", "m.c-hours") == [
        "m.c-hours",
        "m.b-week",
        "m.a-month",
    ]
    window(grid, "m.c-hours", "5h", 1, 1)  # now it would run dry
    Governor(grid.scripts).rank_seats()
    assert list_woken_seats(grid, "m.a-month", "m.b-week", "m.c-hours") == [
        "m.b-week",
        "m.a-month",
        "m.c-hours",
    ]


def test_an_unranked_new_seat_is_woken_with_the_last(grid: Grid) -> None:
    """A key that costs money starts anew between two rankings: the subscriptions still go first."""
    for seat in ("m.plan-a", "m.plan-b"):
        grid.seat(seat)
    window(grid, "m.plan-a", "7d", 80, 4 * 24)
    window(grid, "m.plan-b", "7d", 30, 4 * 24)
    Governor(grid.scripts).rank_seats()
    grid.seat("m.key", prices=(3_000_000, 15_000_000))
    assert list_woken_seats(grid, "m.key", "m.plan-b", "m.plan-a") == [
        "m.plan-a",
        "m.key",
        "m.plan-b",
    ]  # with the last
    Governor(grid.scripts).rank_seats()
    assert list_woken_seats(grid, "m.key", "m.plan-b", "m.plan-a") == ["m.plan-a", "m.plan-b", "m.key"]


def test_a_new_seat_ranks_equal_if_all_seats_are_equal(grid: Grid) -> None:
    for seat in ("m.a", "m.c"):
        grid.seat(seat)
    Governor(grid.scripts).rank_seats()
    grid.seat("m.b-new")
    assert list_woken_seats(grid, "m.a", "m.b-new", "m.c") == [
        "m.a",
        "m.b-new",
        "m.c",
    ]  # who has been idle for the longest


def test_a_sessions_seat_is_woken_before_better_ranked_ones(grid: Grid) -> None:
    for seat in ("m.a", "m.b"):
        grid.seat(seat)
    grid.job(one(), session="s1")
    grid.done(grid.take("m.a"))
    window(grid, "m.a", "day", 0, 1)
    assert grid.claim("m.a") == grid.claim("m.b") == "none"
    assert ranked(grid) == ["m.b", "m.a"]
    window(grid, "m.a", "day", 10, 1)
    grid.clear("seat:m.a", "seat:m.b", ANY)
    grid.job(one(), session="s1")
    assert (grid.wake_ups("seat:m.a"), grid.wake_ups("seat:m.b")) == (1, 0)


def test_calendar_windows_end_by_the_calendar(grid: Grid) -> None:
    turn_at(grid, HOUR, period="day")  # it began a day ago
    grid.seat("m.day", limits=[Limit(resource="requests", window="day", amount=100)])
    grid.seat("m.free")
    window(
        grid, "m.day", "day", 50, -1
    )  # nobody has used it since it turned: it is whole, and ends in an hour
    assert ranked(grid) == ["m.day", "m.free"]
    window(grid, "m.day", "day", 3, 1)
    assert ranked(grid) == ["m.free", "m.day"]


def test_seats_with_a_price_per_call_rank_last(grid: Grid) -> None:
    grid.seat("m.dear", prices=(15_000_000, 75_000_000))
    grid.seat("m.key", prices=(3_000_000, 15_000_000))
    grid.seat("m.own")
    grid.seat("m.dry", limits=[Limit(resource="requests", window="day", amount=0)])
    assert ranked(grid) == ["m.own", "m.key", "m.dear", "m.dry"]


def test_owner_and_family_budgets_count_where_they_bind_and_the_grids_does_not(
    grid: Grid,
) -> None:
    turn_at(grid, 12 * HOUR, period="day")
    limit(grid, """
        [grid]
        budgets = [{requests = 100, per = "day"}]
        [owners.ann]
        budgets = [{requests = 100, per = "day"}]
        [families.claude]
        budgets = [{requests = 100, per = "day"}]
        """)  # fmt: skip
    grid.seat("m.ann", ANY, owner="ann")
    grid.seat("m.claude", ANY, HAIKU, families={ANY: ["claude"]})
    grid.seat("m.free", ANY, HAIKU)
    used = {"g": 99, "o:ann": 90, "f:claude": 95}
    grid.client.hset(
        grid.keys("meters"), mapping={name: f"requests/day/100/{n}/0/" for name, n in used.items()}
    )
    assert ranked(grid) == ["m.claude", "m.ann", "m.free"][::-1]
    assert ranked(grid, HAIKU) == []  # there both are alike
    grid.seat("m.claude", ANY, HAIKU, families=CLAUDE)
    assert ranked(grid, HAIKU) == ["m.free", "m.claude"]


def test_the_number_of_commands_does_not_grow_with_the_seats(grid: Grid) -> None:
    def trips(seats: int) -> int:
        for number in range(seats):
            grid.seat(
                f"m.s{number}", owner="ann", limits=[Limit(resource="requests", window="day", amount=100)]
            )
        connection = grid.client.connection_pool.get_connection()
        try:
            sent: list[object] = []
            send = connection.send_packed_command

            def counted(command: object, check_health: bool = True) -> None:
                sent.append(command)
                send(command, check_health)

            connection.send_packed_command = counted
        finally:
            grid.client.connection_pool.release(connection)
        Governor(grid.scripts).rank_seats()
        connection.send_packed_command = send
        return len(sent)

    limit(grid, '[owners.ann]\nbudgets = [{requests = 100, per = "day"}]')
    few = trips(2)
    assert trips(30) == few > 0
    assert few <= 3
