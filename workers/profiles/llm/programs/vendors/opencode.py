"""opencode: `opencode run --format json`.

Facts: the project's documents, its open source and what version 1.18.33 prints. Events: `step_start`, `text`
(each part whole), `tool_use`, `step_finish` with tokens and cost, `error`. A limit, an overload or a lost
connection is tried again for ever and told on stderr alone. A project's configuration is `opencode.json` in
the working folder; it stands above the owner's own. Models are named `provider/model`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from gridq.protocol.models import Json, Usage
from workers.model_apis.usage import count
from workers.profiles.llm.programs.vendor import Ask, Login, Provider, Reader, patterns, record

AGENT = "gridq"
FINISH = {"length": "length", "content-filter": "content_filter"}


def argv(ask: Ask) -> list[str]:
    agent: dict[str, Json] = {"mode": "primary", "description": "answers"}
    if ask.system:
        agent["prompt"] = "{file:" + ask.file("system.md", ask.system) + "}"
    settings: dict[str, Json] = {"share": "disabled", "autoupdate": False, "agent": {AGENT: agent}}
    if not ask.tools:
        settings["permission"] = agent["permission"] = {"*": "deny"}
        agent["tools"] = {"*": False}
    (ask.folder / "opencode.json").write_text(json.dumps(settings), "utf-8")
    told = ["run", "--print-logs", "--log-level", "ERROR", "--format", "json"]
    return [*told, "--model", ask.model, "--agent", AGENT, *ask.args]


@dataclass
class OpencodeReader(Reader):
    reason: str = ""

    def event(self, event: dict[str, Json]) -> str:
        self.session = event.get("sessionID") or self.session
        part = record(event.get("part"))
        match event.get("type"):
            case "text":
                text = str(part.get("text") or "")
                return f"\n\n{text}" if self.text and text else text
            case "step_finish":
                self._usage(part)
                self.reason = part.get("reason") or ""
                self.complete = self.reason not in ("tool-calls", "error") and not self.refusal
                self.finish = FINISH.get(self.reason, "stop")
            case "error":
                error = record(event.get("error"))
                data = record(error.get("data"))
                status = data.get("statusCode")
                words = data.get("message") or error.get("message") or error.get("name") or ""
                self.refused(f"{words} (HTTP {status})" if status else words)
        return ""

    def _usage(self, part: dict[str, Json]) -> None:
        """Add what a step has used: a call may have several."""
        tokens, cost = record(part.get("tokens")), part.get("cost")
        cache = record(tokens.get("cache"))
        read, written = count(cache.get("read")), count(cache.get("write"))
        reasoning = count(tokens.get("reasoning"))
        if tokens:
            before = self.usage or Usage()
            self.usage = Usage(
                tokens_in=before.tokens_in + count(tokens.get("input")) + read + written,
                tokens_cached=before.tokens_cached + read,
                tokens_cache_written=before.tokens_cache_written + written,
                tokens_out=before.tokens_out + count(tokens.get("output")) + reasoning,
                tokens_reasoning=before.tokens_reasoning + reasoning,
            )
        if isinstance(cost, int | float):
            self.dollars = (self.dollars or 0.0) + float(cost)


OPENCODE = Provider(
    name="opencode",
    title="opencode",
    programs=("opencode",),
    argv=argv,
    reader=lambda ask: OpencodeReader(),
    home={
        "XDG_DATA_HOME": "{home}/.local/share",
        "XDG_CONFIG_HOME": "{home}/.config",
        "XDG_STATE_HOME": "{home}/.local/state",
        "XDG_CACHE_HOME": "{home}/.cache",
    },
    homes=("~/.local/share/opencode",),
    log_in="opencode auth login",
    rule="opencode sets no rule of its own: the terms of the provider that is logged in hold, and most bind "
    "a subscription to one person.",
    example='{name = "anthropic/claude-sonnet-4-5", families = ["claude"]}',
    login=Login(("auth", "list"), re.compile(r"\b0 credentials(?![\s\S]*\b[1-9]\d* environment)")),
    environment=("XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"),
    settings={
        f"OPENCODE_DISABLE_{what}": "1"
        for what in ("AUTOUPDATE", "LSP_DOWNLOAD", "DEFAULT_PLUGINS", "CLAUDE_CODE", "SHARE", "PRUNE")
    },
    hopeless=re.compile(r'message="stream error"[^\n]*\n'),
    words=patterns(
        expired=r"token (has )?expired|token refresh failed|invalid_grant",
        logged_out=r"ProviderAuthError|invalid (x-)?api.?key|incorrect api key|unauthorized|"
        r"api key is missing|\(HTTP 401\)|\(HTTP 403\)",
        no_credit=r"credit balance|insufficient.(balance|credits|quota)|\(HTTP 402\)|billing",
        limited=r"usage limit|rate.?limit|too many requests|\b429\b|\(HTTP 429\)|limit reached",
        overloaded=r"overloaded|\b5(00|02|03|29)\b|\(HTTP 5\d\d\)|unavailable",
        no_model=r"(Provider)?ModelNotFound|model not found|\(HTTP 404\)",
        refused=r"context (window|length)|prompt is too long|MessageOutputLength|\(HTTP 4(00|13|22)\)",
    ),
)
