"""Which graphs stay split."""

from __future__ import annotations

from gridq.store.scripts import Scripts
from gridq.submission.admission import PLANS_KEPT, Admission
from tests.conftest import GridEnv
from tests.fakes.bench_profile import BenchProfile

ECHO = b'{"root": {"op": "Stage", "id": "bench_echo"}}'


def test_a_graph_that_is_asked_for_again_and_again_stays_split(grid_env: GridEnv) -> None:
    made = Admission(Scripts(grid_env.client, grid_env.settings), grid_env.settings, {"bench": BenchProfile()})
    often, once = ECHO, ECHO + b" "
    first, other = made.split(often), made.split(once)
    for number in range(2, PLANS_KEPT + 1):
        made.split(ECHO + b" " * number)
        assert made.split(often) is first
    assert made.split(once) is not other
