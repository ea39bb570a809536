"""Cursor: `cursor-agent -p`.

Facts: the vendor's documents (parameters, output format, permissions); no recorded output. With
--stream-partial-output each `assistant` event is a piece and has `timestamp_ms`; the last one says the whole
again, without. Without it each is a whole message. A failure is told on stderr alone. Its project's
permissions stand in `.cursor/cli.json`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from gridq.protocol.models import Json, Usage
from workers.model_apis.usage import count
from workers.profiles.llm.programs.vendor import Ask, Login, Provider, Reader, patterns, record

DENIED = ["Shell(*)", "Read(**)", "Write(**)", "WebFetch(*)", "Mcp(*:*)"]
NO_TOOLS = {"permissions": {"allow": [], "deny": DENIED}}


def argv(ask: Ask) -> list[str]:
    told = ["-p", "--output-format", "stream-json", "--trust", "--model", ask.model]
    if ask.partial and not ask.tools:
        told.append("--stream-partial-output")
    if ask.tools:
        return [*told, *ask.args]
    rules = ask.folder / ".cursor"
    rules.mkdir()
    (rules / "cli.json").write_text(json.dumps(NO_TOOLS), "utf-8")
    return [*told, "--mode", "ask", "--sandbox", "enabled", *ask.args]


@dataclass
class CursorReader(Reader):
    partial: bool = False

    def event(self, event: dict[str, Json]) -> str:
        self.session = event.get("session_id") or self.session
        match event.get("type"):
            case "assistant" if self.partial and "timestamp_ms" in event:
                parts = record(event.get("message")).get("content")
                return "".join(
                    str(part.get("text") or "")
                    for part in (parts if isinstance(parts, list) else ())
                    if isinstance(part, dict) and part.get("type") == "text"
                )
            case "result":
                self._usage(record(event.get("usage")))
                answer = event.get("result")
                if event.get("is_error") or event.get("subtype") != "success":
                    self.refused(answer or event.get("subtype") or "")
                    return ""
                self.complete = True
                return answer if isinstance(answer, str) and not self.text else ""
        return ""

    def _usage(self, usage: dict[str, Json]) -> None:
        if usage:
            read, written = count(usage.get("cacheReadTokens")), count(usage.get("cacheWriteTokens"))
            self.usage = Usage(
                tokens_in=count(usage.get("inputTokens")) + read + written,
                tokens_cached=read,
                tokens_cache_written=written,
                tokens_out=count(usage.get("outputTokens")),
            )


CURSOR = Provider(
    name="cursor",
    title="Cursor",
    programs=("cursor-agent",),
    argv=argv,
    reader=lambda ask: CursorReader(partial=ask.partial and not ask.tools),
    home={"CURSOR_CONFIG_DIR": "{home}/.cursor", "XDG_CONFIG_HOME": "{home}/.config"},
    homes=("$CURSOR_CONFIG_DIR", "~/.cursor"),
    log_in="cursor-agent login",
    rule="Cursor's terms forbid lending an account to others; each user needs a seat of their own.",
    example='{name = "auto"}',
    login=Login(("status",), re.compile(r"not logged in|not authenticated", re.IGNORECASE)),
    environment=("XDG_CONFIG_HOME",),
    settings={"NO_OPEN_BROWSER": "1"},
    words=patterns(
        expired=r"(session|token|login) (has )?expired",
        logged_out=r"authentication required|not logged in|not authenticated|login' first|unauthenticated|"
        r"invalid api key|api key is invalid",
        no_credit=r"payment|billing|spend limit|unpaid invoice|upgrade to (pro|continue)",
        limited=r"usage limit|rate.?limit|too many requests|resource_exhausted",
        no_model=r"(cannot use this|invalid|unknown|unsupported) model|model .{0,80}not (found|available)",
        overloaded=r"overloaded|unavailable|high demand|high load|capacity",
        refused=r"prompt is too long|context (window|length)",
        broken=r"workspace trust required",
    ),
    system=False,
)
