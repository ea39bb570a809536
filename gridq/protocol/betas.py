"""Betas of Anthropic's API: which a request needs, and which a seat takes.

A client names betas in the header `anthropic-beta`, often all that it knows, whether it uses them or not.
Most are hints, or unlock a field: without them the answer is still one to what was asked. A request needs a
beta that it uses a part of. Source: the vendor's page of each beta.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from gridq.protocol.models import Json
from gridq.protocol.token_count import count_tokens

ANY_BETA = "*"
"""Stands for all betas but WITHHELD."""

WITHHELD = ("oauth-", "files-api-", "skills-", "mcp-client-", "code-execution-", "managed-agents-")
"""The beginnings of betas that a seat takes only if its table names them.

They concern its login, what is stored in its account, and programs that run at the vendor.
"""

LONG_CONTEXT = "context-1m-"
USUAL_CONTEXT = 200_000
"""Tokens of a prompt that needs no beta."""


def takes_beta(allowed: Iterable[str] | None, beta: str) -> bool:
    """Return whether a seat takes `beta`: `allowed` are the names that it allows, None if its API has none.

    How long a context is, is a matter of the model at other APIs.
    """
    if allowed is None:
        return beta.startswith(LONG_CONTEXT)
    return beta in allowed or (ANY_BETA in allowed and not beta.startswith(WITHHELD))


def find_needed_betas(body: Mapping[str, Json], betas: Iterable[str]) -> list[str]:
    """Return those of `betas` that the Messages request `body` uses a part of.

    Parts of an unexpected shape count as none: the worker refuses them wherever they go.
    """
    named = list(betas)
    candidates = [start for start in USES if any(beta.startswith(start) for beta in named)]
    used = tuple(start for start in candidates if USES[start](body))  # once each: it may take long
    return [beta for beta in named if beta.startswith(used)]


def _as_objects(value: Json) -> list[dict[str, Json]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _has_tool(*kinds: str) -> Callable[[Mapping[str, Json]], bool]:
    """Return the check for a tool whose type begins with one of `kinds`."""
    return lambda body: any(
        str(tool.get("type")).startswith(kinds) for tool in _as_objects(body.get("tools"))
    )


def _list_blocks(body: Mapping[str, Json]) -> Iterator[dict[str, Json]]:
    """Yield the blocks of the messages, and those in results of tools."""
    for message in _as_objects(body.get("messages")):
        for block in _as_objects(message.get("content")):
            yield block
            yield from _as_objects(block.get("content"))


def _has_file(body: Mapping[str, Json]) -> bool:
    return any(
        block.get("type") == "container_upload"
        or (isinstance(block.get("source"), dict) and block["source"].get("type") == "file")
        for block in _list_blocks(body)
    )


def _has_skills(body: Mapping[str, Json]) -> bool:
    return isinstance(body.get("container"), dict) and bool(body["container"].get("skills"))


def _has_servers(body: Mapping[str, Json]) -> bool:
    return bool(body.get("mcp_servers"))


def _compacts(body: Mapping[str, Json]) -> bool:
    management = body.get("context_management")
    edits = management.get("edits") if isinstance(management, dict) else None
    return any(str(edit.get("type")).startswith("compact_") for edit in _as_objects(edits))


def _is_long(body: Mapping[str, Json]) -> bool:
    return isinstance(body.get("messages"), list) and count_tokens(dict(body)) > USUAL_CONTEXT


USES: Mapping[str, Callable[[Mapping[str, Json]], bool]] = {
    "files-api-": _has_file,
    "code-execution-": _has_tool("code_execution_"),
    "mcp-client-": _has_servers,
    "skills-": _has_skills,
    "computer-use-": _has_tool("computer_"),
    "web-fetch-": _has_tool("web_fetch_"),
    "advisor-tool-": _has_tool("advisor_"),
    "advanced-tool-use-": _has_tool("tool_search_tool_", "code_execution_"),
    "context-management-": _has_tool("memory_"),
    "compact-": _compacts,
    "fast-mode-": lambda body: body.get("speed") == "fast",
    "server-side-fallback-": lambda body: bool(body.get("fallbacks")),
    LONG_CONTEXT: _is_long,
}
"""By the beginning of a beta's name: whether a request uses what it unlocks. Others are hints."""
