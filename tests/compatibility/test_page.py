"""The page shows the results, and the results have a test and an outcome for every cell."""

from __future__ import annotations

import pytest

from tests.compatibility import results
from tests.compatibility.results import FEATURES, PAGE, SEATS, WORKED

ROWS = [
    pytest.param(client, feature, id=f"{client}-{feature}")
    for client, features in results.load().items()
    for feature in features
]


def test_the_page_shows_the_results() -> None:
    assert PAGE.read_text("utf-8") == results.render(results.load()), "run `make compatibility`"


@pytest.mark.parametrize(("client", "feature"), ROWS)
def test_a_row_has_its_test_and_an_outcome_at_every_seat(client: str, feature: str) -> None:
    row = results.load()[client][feature]
    assert feature in FEATURES
    assert results.has_test(row["test"]), f"{row['test']} is gone: run `make compatibility`"
    assert set(row["cells"]) == set(SEATS)
    for outcome in row["cells"].values():
        assert outcome == WORKED or (set(outcome) == {"refused"} and outcome["refused"])
