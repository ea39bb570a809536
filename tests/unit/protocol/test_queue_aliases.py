"""What a queue stands for: its own alias before patterns, patterns in their order."""

from __future__ import annotations

from gridq.protocol.models import Demand
from gridq.protocol.queue_aliases import NO_ALIASES, QueueAliases

ALIASES = QueueAliases(
    (
        ("llm:gpt-*", ("llm:big",)),
        ("llm:gpt-*-mini", ("llm:never",)),
        ("llm:gpt-4.1", ("llm:own", "llm:any")),
    )
)


def test_an_alias_of_its_own_has_precedence_over_patterns() -> None:
    assert ALIASES.find_targets("llm:gpt-4.1") == ("llm:own", "llm:any")
    assert ALIASES.find_targets("llm:gpt-5-mini") == ("llm:big",)
    assert ALIASES.find_targets("llm:gpt") == ALIASES.find_targets("gpu:gpt-4") == ()
    assert ALIASES.find_targets("llm:gpt-441") == ("llm:big",), "a point is no wildcard"


def test_a_demand_gets_its_targets_as_fall_backs_with_its_needs() -> None:
    demand = Demand(
        queue="llm:gpt-4.1",
        needs={"context": 5},
        fallbacks=(Demand(queue="llm:any", needs={"context": 9}), Demand(queue="llm:gpt-5")),
    )
    found = ALIASES.expand(demand)
    assert [(each.queue, each.needs) for each in found.alternatives] == [
        ("llm:gpt-4.1", {"context": 5}),
        ("llm:own", {"context": 5}),
        ("llm:any", {"context": 5}),
        ("llm:gpt-5", {}),
        ("llm:big", {}),
    ]
    assert all(each.fallbacks == () for each in found.fallbacks)
    other = Demand(queue="llm:claude")
    assert ALIASES.expand(other) is other
    assert NO_ALIASES.expand(demand) is demand
