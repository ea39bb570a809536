"""opencode: `opencode run --format json`.

Source: the project's documentation, its source code and the output of version 1.18.33. Events: `step_start`,
`text` (a complete part), `tool_use`, `step_finish` with tokens and cost, `error`. After a rate limit, an
overload or a lost connection it retries forever and reports it on stderr only. The project's configuration,
`opencode.json` in the working folder, overrides the owner's. Models are named `provider/model`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from gridq.protocol.models import Json, Usage
from workers.model_apis.usage import parse_count
from workers.profiles.llm.programs.vendor import (
    LoginCheck,
    OutputParser,
    ProgramCall,
    VendorProgram,
    as_object,
    compile_patterns,
)

AGENT = "gridq"
FINISH_REASONS = {"length": "length", "content-filter": "content_filter"}


def make_arguments(call: ProgramCall) -> list[str]:
    agent: dict[str, Json] = {"mode": "primary", "description": "answers"}
    if call.system:
        agent["prompt"] = "{file:" + call.write_file("system.md", call.system) + "}"
    # without a title: it would be asked from another model
    agents: dict[str, Json] = {AGENT: agent, "title": {"disable": True}}
    settings: dict[str, Json] = {"share": "disabled", "autoupdate": False, "agent": agents}
    if call.allows_tools:
        (call.folder / "opencode.json").write_text(json.dumps(settings), "utf-8")
    else:
        settings["permission"] = agent["permission"] = {"*": "deny"}
        agent["tools"] = {"*": False}
        folder = call.input_folder / "config" / "opencode"
        folder.mkdir(parents=True)
        (folder / "opencode.json").write_text(json.dumps(settings), "utf-8")
    arguments = ["run", "--print-logs", "--log-level", "ERROR", "--format", "json"]
    return [*arguments, "--model", call.model, "--agent", AGENT, *call.args]


def make_variables(call: ProgramCall) -> Mapping[str, str]:
    """Without tools, keep the owner's settings, instructions, skills and plugins out of the call.

    The program sends AGENTS.md of its settings folder and of all folders above the working folder to the
    model. Its login is in another folder.
    """
    if call.allows_tools:
        return {}
    without = ("PROJECT_CONFIG", "EXTERNAL_SKILLS")
    return {
        "XDG_CONFIG_HOME": str(call.input_folder / "config"),
        "OPENCODE_PURE": "1",
        **{f"OPENCODE_DISABLE_{what}": "1" for what in without},
    }


@dataclass
class OpencodeParser(OutputParser):
    reason: str = ""

    def add_event(self, event: dict[str, Json]) -> str:
        part = as_object(event.get("part"))
        match event.get("type"):
            case "text":
                text = str(part.get("text") or "")
                return f"\n\n{text}" if self.has_text and text else text
            case "step_finish":
                self._add_usage(part)
                self.reason = part.get("reason") or ""
                self.is_complete = self.reason not in ("tool-calls", "error") and not self.refusal
                self.finish_reason = FINISH_REASONS.get(self.reason, "stop")
            case "error":
                error = as_object(event.get("error"))
                data = as_object(error.get("data"))
                status = data.get("statusCode")
                message = data.get("message") or error.get("message") or error.get("name") or ""
                self.refuse(f"{message} (HTTP {status})" if status else message)
        return ""

    def _add_usage(self, part: dict[str, Json]) -> None:
        """Add the usage of one step. A call may have several."""
        tokens, cost = as_object(part.get("tokens")), part.get("cost")
        cache = as_object(tokens.get("cache"))
        read, written = parse_count(cache.get("read")), parse_count(cache.get("write"))
        reasoning = parse_count(tokens.get("reasoning"))
        if tokens:
            before = self.usage or Usage()
            self.usage = Usage(
                tokens_in=before.tokens_in + parse_count(tokens.get("input")) + read + written,
                tokens_cached=before.tokens_cached + read,
                tokens_cache_written=before.tokens_cache_written + written,
                tokens_out=before.tokens_out + parse_count(tokens.get("output")) + reasoning,
                tokens_reasoning=before.tokens_reasoning + reasoning,
            )
        if isinstance(cost, int | float):
            self.dollars = (self.dollars or 0.0) + float(cost)


OPENCODE = VendorProgram(
    name="opencode",
    title="opencode",
    names=("opencode",),
    make_arguments=make_arguments,
    make_parser=lambda call: OpencodeParser(),
    home={
        "XDG_DATA_HOME": "{home}/.local/share",
        "XDG_CONFIG_HOME": "{home}/.config",
        "XDG_STATE_HOME": "{home}/.local/state",
        "XDG_CACHE_HOME": "{home}/.cache",
    },
    homes=("~/.local/share/opencode",),
    log_in="opencode auth login",
    rule="opencode has no rule of its own. The terms of the provider that is logged in apply, and most limit "
    "a subscription to one person.",
    example='{name = "anthropic/claude-sonnet-4-5", families = ["claude"]}',
    proven="1.18.33",
    login_check=LoginCheck(("auth", "list"), re.compile(r"\b0 credentials(?![\s\S]*\b[1-9]\d* environment)")),
    environment=("XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"),
    settings={
        f"OPENCODE_DISABLE_{what}": "1"
        for what in ("AUTOUPDATE", "LSP_DOWNLOAD", "DEFAULT_PLUGINS", "CLAUDE_CODE", "SHARE", "PRUNE")
    },
    make_variables=make_variables,
    hopeless=re.compile(r'message="stream error"[^\n]*\n'),
    failure_patterns=compile_patterns(
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
