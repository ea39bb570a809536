"""Gemini CLI: `gemini --output-format stream-json`.

Source: the vendor's documentation and the output of version 0.61.0. Events: `init`, `message` (of the user,
and of the assistant in pieces), `tool_use`, `tool_result`, `error`, and `result` with `stats`. Exit codes: 41
for a missing login, 42 for a wrong request, 53 for too many turns.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gridq.protocol.models import Json, Usage
from workers.model_apis.usage import parse_count
from workers.profiles.llm.programs.vendor import (
    SLASH_COMMAND,
    OutputParser,
    ProgramCall,
    VendorProgram,
    as_object,
    compile_patterns,
)

SETTINGS = ".gemini/settings.json"
COMMON_SETTINGS: dict[str, Json] = {
    "general": {
        "enableAutoUpdate": False,
        "enableAutoUpdateNotification": False,
        "maxAttempts": 1,  # the grid tries other seats
        "retryFetchErrors": False,
    },
    "privacy": {"usageStatisticsEnabled": False},
    "telemetry": {"enabled": False},
}
NO_TOOLS_SETTINGS: dict[str, Json] = {
    "tools": {"core": ["none"]},
    "mcp": {"allowed": []},
    "skills": {"enabled": False},
    "hooksConfig": {"enabled": False},
    "experimental": {"enableAgents": False},
    "context": {"fileName": ["none.md"], "includeDirectoryTree": False},
}
"""No tools, no MCP servers and no instruction files."""

SELECTED_AUTH = re.compile(r'"selectedType"\s*:\s*"([\w-]+)"')
"""The login method in the owner's settings, which are JSON with comments."""

LOGIN_FILES = (
    *(".env", "oauth_creds.json", "google_accounts.json", "google_account_id", "gemini-credentials.json"),
    *("installation_id", "user_id"),
)
"""All that the program sees of the login's folder if its tools are off. The folder also has GEMINI.md, which
it sends to the model whatever `context.fileName` says, and earlier conversations, which `@path` reads.
"""

TEMPLATES = re.compile(r"\$\{(?=(?:AgentSkills|SubAgents|AvailableTools|\w+_ToolName)\})")
"""What the program replaces in a system prompt."""

WORD_JOINER = "\u2060"


def make_arguments(call: ProgramCall) -> list[str]:
    arguments = ["--output-format", "stream-json", "--model", call.model, "--extensions", "none"]
    if call.allows_tools:
        return [*arguments, *call.args]
    return [*arguments, "--approval-mode", "default", "--allowed-mcp-server-names", "none", *call.args]


def make_variables(call: ProgramCall) -> Mapping[str, str]:
    variables, selected = {}, None
    if call.system:
        # with an invisible character, the model reads the same and the program finds no template
        system = TEMPLATES.sub("${" + WORD_JOINER, call.system)
        variables["GEMINI_SYSTEM_MD"] = call.write_file("system.md", system)
    if call.allows_tools:
        _write_settings(call.folder, COMMON_SETTINGS)  # of a project: they override the owner's
    else:
        home = Path(call.link_login(*(f".gemini/{name}" for name in LOGIN_FILES)))
        with contextlib.suppress(OSError):
            selected = SELECTED_AUTH.search((call.login_folder / SETTINGS).read_text("utf-8", "replace"))
        auth = {"selectedType": selected[1]} if selected else {}
        _write_settings(home, COMMON_SETTINGS | NO_TOOLS_SETTINGS | {"security": {"auth": auth}})
        variables["GEMINI_CLI_HOME"] = str(home)
    return variables


def _write_settings(folder: Path, settings: Mapping[str, Json]) -> None:
    path = folder / SETTINGS
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(settings), "utf-8")


@dataclass
class GeminiParser(OutputParser):
    def add_event(self, event: dict[str, Json]) -> str:
        match event.get("type"):
            case "message" if event.get("role") == "assistant":
                return str(event.get("content") or "")
            case "error" if event.get("severity") != "warning":
                self.refusal = str(event.get("message") or "")
            case "result":
                self._set_usage(as_object(event.get("stats")))
                if event.get("status") == "success":
                    self.is_complete, self.refusal = True, ""
                else:
                    error = event.get("error")
                    self.refuse(as_object(error).get("message") or error or self.refusal)
            case None if "error" in event:  # an error before the stream is one object
                error = event["error"]
                self.refuse(as_object(error).get("message") or error)
        return ""

    def _set_usage(self, stats: dict[str, Json]) -> None:
        usage = Usage(
            tokens_in=parse_count(stats.get("input_tokens")),
            tokens_cached=parse_count(stats.get("cached")),
            tokens_out=parse_count(stats.get("output_tokens")),
        )
        self.usage = usage if usage != Usage() else None


GEMINI = VendorProgram(
    name="gemini",
    title="Gemini CLI",
    names=("gemini",),
    make_arguments=make_arguments,
    make_parser=lambda call: GeminiParser(),
    home={"GEMINI_CLI_HOME": "{home}"},
    homes=("$GEMINI_CLI_HOME", "~"),
    log_in="gemini, then choose a login method",
    rule="Google licenses Gemini Code Assist to one named user, so a login is for its holder only. Lend an "
    "API key instead.",
    example='{name = "gemini-2.5-pro", families = ["gemini"]}',
    proven="0.61.0",
    environment=(
        "GOOGLE_CLOUD_PROJECT",
        "GOOGLE_CLOUD_LOCATION",
        "GOOGLE_GENAI_USE_GCA",
        "GOOGLE_GENAI_USE_VERTEXAI",
    ),
    settings={
        "GEMINI_TELEMETRY_ENABLED": "false",
        "GEMINI_CLI_TRUST_WORKSPACE": "true",
        "GEMINI_CLI_NO_RELAUNCH": "true",
    },
    make_variables=make_variables,
    commands=SLASH_COMMAND,
    failure_patterns=compile_patterns(
        expired=r"invalid_grant|token (has been )?(expired|revoked)|reauth",
        logged_out=r"set an auth method|api key not valid|api_key_invalid|unauthenticated|"
        r"must specify the \w+_API_KEY|invalid auth method|\bcode\"?:\s*(40[13]|41)\b|"
        r"authentication (is )?(required|failed)|interactive (consent|terminal)|FatalAuthentication",
        no_credit=r"billing|prepayment credits|payment required|\bcode\"?:\s*402\b",
        limited=r"exhausted your (capacity|daily quota)|quota|resource_exhausted|rate.?limit|"
        r"\bcode\"?:\s*429\b",
        overloaded=r"overloaded|status: unavailable|high demand|\bcode\"?:\s*5\d\d\b",
        no_model=r"requested entity was not found|model .{0,80}not found|ModelNotFound|\bcode\"?:\s*404\b",
        refused=r"input token count|exceeds the maximum|invalid_argument|prohibited_content|"
        r"\bcode\"?:\s*400\b",
    ),
)
