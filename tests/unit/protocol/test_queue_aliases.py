"""What a queue stands for: its own alias before patterns, patterns in their order."""

from __future__ import annotations

import random
import re
import time

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


def test_a_pattern_matches_as_its_regular_expression_does() -> None:
    chance = random.Random(7)
    for _ in range(5000):
        pattern = "".join(chance.choices("ab*", k=chance.randint(1, 7)))
        name = "".join(chance.choices("ab", k=chance.randint(0, 8)))
        if "*" not in pattern:
            continue
        aliases = QueueAliases(((pattern, ("llm:x",)),))
        expected = re.fullmatch(pattern.replace("*", ".*"), name) is not None
        assert bool(aliases.find_targets(name)) is expected, (pattern, name)


def test_a_pattern_of_many_wildcards_takes_linear_time() -> None:
    aliases = QueueAliases((("llm:" + "a*" * 60 + "b", ("llm:x",)),))
    begun = time.thread_time()
    assert aliases.find_targets("llm:" + "a" * 250) == ()
    assert time.thread_time() - begun < 0.1
