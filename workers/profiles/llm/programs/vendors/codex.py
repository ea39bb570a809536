"""Codex: `codex exec --json`.

Source: the vendor's documentation, its source code and the output of version 0.171.0. Each line is an event:
`thread.started`, `turn.started`, `item.*` (of the kinds `agent_message`, `reasoning`, `command_execution` …),
`turn.completed` with usage, `turn.failed`, and `error`, which also reports retries. The last `agent_message`
is the complete answer; earlier ones are remarks.
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

TOOL_FEATURES = (
    *("shell_tool", "unified_exec", "apply_patch_freeform", "view_image", "image_generation", "multi_agent"),
    *("apps", "plugins", "remote_plugin", "hooks", "goals", "skill_search", "tool_suggest", "sleep_tool"),
    *("browser_use", "browser_use_external", "in_app_browser", "computer_use", "code_mode_host"),
    *("shell_snapshot", "skill_mcp_dependency_install"),
)
"""Features that are tools or enable some. They are disabled by settings: --disable rejects a name that the
version does not know.
"""

LOGIN_FILES = ("auth.json", "installation_id", "models_cache.json")
"""All that the program sees of the login's folder if its tools are off. The folder also has AGENTS.md and
skills, which it sends to the model, and it sends any skill that a prompt names. There is no option against
it. It writes a renewed login through the link.
"""

COMMON_SETTINGS = (
    'approval_policy="never"',
    "analytics.enabled=false",
    "check_for_update_on_startup=false",
    "features.unbounded_connection_retries=false",
)


def make_arguments(call: ProgramCall) -> list[str]:
    arguments = ["exec", "--json", "--skip-git-repo-check", "--ephemeral", "--color", "never"]
    arguments += ["--model", call.model, "--cd", str(call.folder)]
    settings = list(COMMON_SETTINGS)
    if call.allows_tools:
        arguments += ["--sandbox", "workspace-write"]
    else:
        # without the owner's settings it starts no MCP server; the sandbox is read-only in addition
        arguments += ["--sandbox", "read-only", "--ignore-user-config", "--ignore-rules"]
        settings += [*(f"features.{name}=false" for name in TOOL_FEATURES), 'web_search="disabled"']
        settings += ["project_doc_max_bytes=0", "skills.include_instructions=false"]
        settings += ["skills.bundled.enabled=false"]
    if call.system:
        # in a file, because all users of a machine can see the arguments of a process
        settings.append(f"model_instructions_file={json.dumps(call.write_file('system.md', call.system))}")
    for setting in settings:
        arguments += ["-c", setting]
    if call.schema is not None:
        arguments += ["--output-schema", call.write_file("schema.json", json.dumps(call.schema))]
    return [*arguments, *call.args, "-"]


def make_variables(call: ProgramCall) -> Mapping[str, str]:
    if call.allows_tools:
        return {}
    folder = call.link_login(*LOGIN_FILES)
    return {"CODEX_HOME": folder, "HOME": folder}  # HOME has skills as well


@dataclass
class CodexParser(OutputParser):
    last_message: str = ""
    last_error: str = ""

    def add_event(self, event: dict[str, Json]) -> str:
        match event.get("type"):
            case "item.completed":
                item = as_object(event.get("item"))
                if item.get("type") == "agent_message":
                    self.last_message = str(item.get("text") or "")
            case "error":
                self.last_error = str(event.get("message") or "")
                self.refusal = self.refusal or self.last_error
            case "turn.failed":
                error = event.get("error")
                self.refuse(as_object(error).get("message") or error or self.last_error)
            case "turn.completed":
                self._set_usage(as_object(event.get("usage")))
                self.is_complete, self.refusal = True, ""
                return self.last_message
        return ""

    def _set_usage(self, usage: dict[str, Json]) -> None:
        if usage:
            self.usage = Usage(
                tokens_in=parse_count(usage.get("input_tokens")),
                tokens_cached=parse_count(usage.get("cached_input_tokens")),
                tokens_cache_written=parse_count(usage.get("cache_write_input_tokens")),
                tokens_out=parse_count(usage.get("output_tokens")),
                tokens_reasoning=parse_count(usage.get("reasoning_output_tokens")),
            )


CODEX = VendorProgram(
    name="codex",
    title="Codex",
    names=("codex",),
    make_arguments=make_arguments,
    make_parser=lambda call: CodexParser(),
    home={"CODEX_HOME": "{home}"},
    homes=("$CODEX_HOME", "~/.codex"),
    log_in="codex login",
    rule="OpenAI's terms allow only the holder to use an account. Lend a seat of a plan whose terms allow "
    "it, or an API key.",
    example='{name = "gpt-5-codex", families = ["gpt-5"]}',
    proven="0.171.0",
    login_check=LoginCheck(("login", "status"), re.compile(r"not logged in", re.IGNORECASE)),
    make_variables=make_variables,
    failure_patterns=compile_patterns(
        expired=r"refresh token .{0,40}(revoked|expired|already used)|token_expired|"
        r"access token could not be refreshed|log out and sign in again",
        logged_out=r"not logged in|missing (environment variable|bearer)|\b401\b|unauthorized|"
        r"invalid_api_key|incorrect api key|please log in|codex login",
        no_credit=r"\b402\b|quota exceeded|insufficient_quota|out of credits|and billing|upgrade to plus",
        limited=r"usage limit|rate.?limit|too many requests|\b429\b",
        no_model=r"model .{0,80}(not supported|not found|does not exist)|model_not_found",
        overloaded=r"at capacity|high demand|overloaded|\b(502|503|504|529)\b|server_error",
        refused=r"context (window|length)|context_length_exceeded|invalid_request_error|invalid_prompt",
    ),
    supports_schema=True,
)
