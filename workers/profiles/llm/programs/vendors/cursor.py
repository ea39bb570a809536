"""Cursor: `cursor-agent -p`.

Source: the vendor's documentation (parameters, output format, permissions), but no recorded output. With
--stream-partial-output each `assistant` event is a piece with `timestamp_ms`; the last one repeats the whole
answer, without it. Otherwise each event is a complete message. Failures go to stderr only. The permissions of
a project are in `.cursor/cli.json`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from gridq.protocol.models import Json, Usage
from workers.model_apis.usage import parse_count
from workers.profiles.llm.programs.vendor import (
    SLASH_COMMAND,
    LoginCheck,
    OutputParser,
    ProgramCall,
    VendorProgram,
    as_object,
    compile_patterns,
)

DENIED = ["Shell(*)", "Read(**)", "Write(**)", "WebFetch(*)", "Mcp(*:*)"]
NO_TOOLS = {"permissions": {"allow": [], "deny": DENIED}}


def make_arguments(call: ProgramCall) -> list[str]:
    arguments = ["-p", "--output-format", "stream-json", "--trust", "--model", call.model]
    if call.streams and not call.allows_tools:
        arguments.append("--stream-partial-output")
    if call.allows_tools:
        return [*arguments, *call.args]
    rules = call.folder / ".cursor"
    rules.mkdir()
    (rules / "cli.json").write_text(json.dumps(NO_TOOLS), "utf-8")
    return [*arguments, "--mode", "ask", "--sandbox", "enabled", *call.args]


@dataclass
class CursorParser(OutputParser):
    streams: bool = False

    def add_event(self, event: dict[str, Json]) -> str:
        match event.get("type"):
            case "assistant" if self.streams and "timestamp_ms" in event:
                parts = as_object(event.get("message")).get("content")
                return "".join(
                    str(part.get("text") or "")
                    for part in (parts if isinstance(parts, list) else ())
                    if isinstance(part, dict) and part.get("type") == "text"
                )
            case "result":
                self._set_usage(as_object(event.get("usage")))
                answer = event.get("result")
                if event.get("is_error") or event.get("subtype") != "success":
                    self.refuse(answer or event.get("subtype") or "")
                    return ""
                self.is_complete = True
                return answer if isinstance(answer, str) and not self.has_text else ""
        return ""

    def _set_usage(self, usage: dict[str, Json]) -> None:
        if usage:
            read, written = (
                parse_count(usage.get("cacheReadTokens")),
                parse_count(usage.get("cacheWriteTokens")),
            )
            self.usage = Usage(
                tokens_in=parse_count(usage.get("inputTokens")) + read + written,
                tokens_cached=read,
                tokens_cache_written=written,
                tokens_out=parse_count(usage.get("outputTokens")),
            )


CURSOR = VendorProgram(
    name="cursor",
    title="Cursor",
    names=("cursor-agent",),
    make_arguments=make_arguments,
    make_parser=lambda call: CursorParser(streams=call.streams and not call.allows_tools),
    home={"CURSOR_CONFIG_DIR": "{home}/.cursor", "XDG_CONFIG_HOME": "{home}/.config"},
    homes=("$CURSOR_CONFIG_DIR", "~/.cursor"),
    log_in="cursor-agent login",
    rule="Cursor's terms forbid lending an account to others; each user needs a seat of their own.",
    example='{name = "auto"}',
    proven="",
    login_check=LoginCheck(("status",), re.compile(r"not logged in|not authenticated", re.IGNORECASE)),
    environment=("XDG_CONFIG_HOME",),
    settings={"NO_OPEN_BROWSER": "1"},
    commands=SLASH_COMMAND,
    failure_patterns=compile_patterns(
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
    supports_system=False,
)
