"""The compiled graphs that admission keeps."""

from __future__ import annotations

from gridq.store.scripts import Scripts
from gridq.submission.admission import MAX_COMPILED, Admission
from tests.conftest import GridEnv
from tests.fakes.bench_profile import BenchProfile

ECHO = b'{"root": {"op": "Stage", "id": "bench_echo"}}'


def test_a_graph_in_use_stays_compiled(grid_env: GridEnv) -> None:
    made = Admission(
        Scripts(grid_env.client, grid_env.settings), grid_env.settings, {"bench": BenchProfile()}
    )
    often, once = ECHO, ECHO + b" "
    first, other = made.compile(often), made.compile(once)
    for number in range(2, MAX_COMPILED + 1):
        made.compile(ECHO + b" " * number)
        assert made.compile(often) is first
    assert made.compile(once) is not other
