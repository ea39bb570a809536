"""Which betas a request needs, and which a seat takes."""

from __future__ import annotations

from typing import Any

import pytest

from gridq.protocol import betas
from gridq.protocol.betas import ANY_BETA, find_needed_betas, takes_beta

FILE = {"type": "document", "source": {"type": "file", "file_id": "file_1"}}
CLAUDE_CODE = [
    *("claude-code-20250219", "interleaved-thinking-2025-05-14", "context-management-2025-06-27"),
    *("fine-grained-tool-streaming-2025-05-14", "prompt-caching-scope-2026-01-05", "effort-2025-11-24"),
    *("token-efficient-tools-2025-02-19", "context-1m-2025-08-07", "advisor-tool-2026-03-01"),
]


def ask(*content: Any, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(content) or "hi"}], **more}


@pytest.mark.parametrize(
    ("beta", "body"),
    [
        ("files-api-2025-04-14", ask(FILE)),
        ("files-api-2025-04-14", ask({"type": "tool_result", "tool_use_id": "a", "content": [FILE]})),
        ("files-api-2025-04-14", ask({"type": "container_upload", "file_id": "file_1"})),
        ("code-execution-2025-08-25", ask(tools=[{"type": "code_execution_20250825", "name": "x"}])),
        ("mcp-client-2025-11-20", ask(mcp_servers=[{"type": "url", "url": "https://x.invalid"}])),
        ("skills-2025-10-02", ask(container={"skills": [{"skill_id": "pptx"}]})),
        ("computer-use-2025-11-24", ask(tools=[{"type": "computer_20251124", "name": "computer"}])),
        ("compact-2026-01-12", ask(context_management={"edits": [{"type": "compact_20260112"}]})),
        ("fast-mode-2026-02-01", ask(speed="fast")),
        ("context-1m-2025-08-07", ask({"type": "text", "text": "x" * 800_000})),
    ],
)
def test_a_beta_is_needed_if_the_request_uses_it(beta: str, body: dict[str, Any]):
    assert find_needed_betas(body, [*CLAUDE_CODE[:3], beta]) == [beta]
    assert find_needed_betas(ask(), [beta]) == []
    assert find_needed_betas(body, []) == []


def test_what_a_client_names_and_does_not_use_is_a_hint():
    assert find_needed_betas(ask(tools=[{"name": "weather", "input_schema": {}}]), CLAUDE_CODE) == []


@pytest.mark.parametrize("field", ["messages", "tools", "container", "context_management", "mcp_servers"])
@pytest.mark.parametrize("value", [None, 7, "x", [7], {"edits": 7}, [{"content": [7], "type": 7}], []])
def test_parts_of_an_odd_shape_need_nothing(field: str, value: Any):
    names = ["files-api-1", "code-execution-1", "skills-1", "compact-1", "context-1m-1", "computer-use-1"]
    assert find_needed_betas({field: value}, names) == []


@pytest.mark.parametrize(
    ("allowed", "taken"),
    [
        ((ANY_BETA,), ["interleaved-thinking-1", "context-1m-1"]),
        ((), []),
        (("files-api-1",), ["files-api-1"]),
        ((ANY_BETA, "files-api-1"), ["interleaved-thinking-1", "files-api-1", "context-1m-1"]),
        (None, ["context-1m-1"]),
    ],
)
def test_a_seat_takes_what_its_owner_allows(allowed: tuple[str, ...] | None, taken: list[str]):
    stated = ["interleaved-thinking-1", "files-api-1", "context-1m-1", "oauth-1"]
    assert [beta for beta in stated if takes_beta(allowed, beta)] == taken


def test_many_betas_of_one_kind_read_the_request_once(monkeypatch: pytest.MonkeyPatch):
    read = []
    monkeypatch.setitem(betas.USES, "context-1m-", lambda body: not read.append(body))  # type: ignore[index]
    named = [f"context-1m-{number}" for number in range(50)]
    assert find_needed_betas(ask(), ["effort-2025-11-24", *named]) == named
    assert len(read) == 1
