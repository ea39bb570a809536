"""Queue names as people read them."""

from __future__ import annotations

import pytest

from gridq.protocol.queue_names import format_queue


@pytest.mark.parametrize(
    ("queue", "shown"),
    [
        ("llm:qwen3%3A8b", "llm:qwen3:8b"),
        ("llm:meta%2Fllama%203", "llm:meta/llama 3"),
        ("llm:%C3%A9t%C3%A9", "llm:été"),
        ("gpu:cuda-24g", "gpu:cuda-24g"),
        ("-", "-"),
        ("llm:a%1B%5B2Jb", "llm:a%1B%5B2Jb"),  # a terminal would obey it
        ("llm:a%0Ab", "llm:a%0Ab"),
    ],
)
def test_a_name_is_shown_as_its_owner_wrote_it_unless_a_terminal_would_obey_it(
    queue: str, shown: str
) -> None:
    assert format_queue(queue) == shown
