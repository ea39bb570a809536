"""What the models of Anthropic take: the longest answer, sampling, strict tools.

Sources: the vendor's pages of the models and of structured outputs, and its migration guides. An endpoint may
state the longest answer itself, as the vendor's does. A new model counts as the last one of its line; add a
row to MODELS if it takes something else.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

NAME = re.compile(
    r"claude-(?:(?P<line>[a-z]+)-)?(?:(?P<major>\d{1,2})(?:[-.](?P<minor>\d{1,2}))?(?!\d)|preview)"
    r"(?:-(?P<last>[a-z]+))?"
)


@dataclass(frozen=True)
class ClaudeModel:
    """What a model takes.

    `max_tokens` is its longest answer. `takes_sampling` stands for `temperature`, `top_p` and `top_k`,
    `takes_strict_tools` for `strict` of a tool.
    """

    max_tokens: int
    takes_sampling: bool = True
    takes_strict_tools: bool = True


NEWEST = ClaudeModel(128_000, takes_sampling=False)

MODELS: tuple[tuple[str, tuple[int, int], ClaudeModel], ...] = (
    ("fable", (0, 0), NEWEST),
    ("mythos", (0, 0), NEWEST),
    ("", (4, 7), NEWEST),
    ("", (4, 6), ClaudeModel(128_000)),
    ("", (4, 5), ClaudeModel(64_000)),
    ("opus", (4, 1), ClaudeModel(32_000)),
    ("opus", (4, 0), ClaudeModel(32_000, takes_strict_tools=False)),
    ("", (3, 7), ClaudeModel(64_000, takes_strict_tools=False)),
    ("", (3, 5), ClaudeModel(8192, takes_strict_tools=False)),
    ("", (0, 0), ClaudeModel(4096, takes_strict_tools=False)),
)
"""By line ("" for all) and first version, newest first."""


def find_claude_model(name: str) -> ClaudeModel | None:
    """Return what the model `name` takes, None if it is none of Anthropic's.

    >>> find_claude_model("eu.anthropic.claude-haiku-4-5-20251001-v1:0").max_tokens
    64000
    >>> find_claude_model("claude-3-5-haiku@20241022").max_tokens
    8192
    """
    parsed = parse_model(name)
    if parsed is None:
        return None
    line, version = parsed
    return next(model for each, first, model in MODELS if each in ("", line) and version >= first)


def parse_model(name: str) -> tuple[str, tuple[int, int]] | None:
    """Return the line and version, `("opus", (4, 6))` of `claude-opus-4-6`, None for another vendor's model.

    A name may have neither: then the line is empty, and the version is (0, 0).
    """
    found = NAME.search(name)
    if found is None:
        return None
    return found["line"] or found["last"] or "", (int(found["major"] or 0), int(found["minor"] or 0))
