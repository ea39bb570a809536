"""Gemini CLI: `gemini --output-format stream-json`.

Facts: the vendor's documents and what version 0.61.0 prints. Events: `init`, `message` (of the user and, in
pieces, of the assistant), `tool_use`, `tool_result`, `error` and `result` with `stats`. Exit codes: 41 for a
missing login, 42 for a wrong request, 53 for too many turns.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from gridq.protocol.models import Json, Usage
from workers.model_apis.usage import count
from workers.profiles.llm.programs.vendor import Ask, Provider, Reader, patterns, record

QUIET: dict[str, Json] = {
    "general": {
        "enableAutoUpdate": False,
        "enableAutoUpdateNotification": False,
        "maxAttempts": 1,  # the grid has other seats to try
        "retryFetchErrors": False,
    },
    "privacy": {"usageStatisticsEnabled": False},
    "telemetry": {"enabled": False},
}
NO_TOOLS: dict[str, Json] = {
    "tools": {"core": ["none"]},
    "mcp": {"allowed": []},
    "skills": {"enabled": False},
    "hooksConfig": {"enabled": False},
    "experimental": {"enableAgents": False},
    "context": {"fileName": ["none.md"], "includeDirectoryTree": False},
}
"""Settings of the system, which no other file of settings overrides: no tool, no server of tools, no file of
instructions. The program reads them only from a folder that nobody else may write to.
"""


def argv(ask: Ask) -> list[str]:
    told = ["--output-format", "stream-json", "--model", ask.model, "--extensions", "none"]
    if ask.tools:
        return [*told, *ask.args]
    return [*told, "--approval-mode", "default", "--allowed-mcp-server-names", "none", *ask.args]


def variables(ask: Ask) -> Mapping[str, str]:
    told = {}
    if ask.system:
        told["GEMINI_SYSTEM_MD"] = ask.file("system.md", ask.system)
    settings = QUIET if ask.tools else QUIET | NO_TOOLS
    told["GEMINI_CLI_SYSTEM_SETTINGS_PATH"] = ask.file("settings.json", json.dumps(settings))
    return told


@dataclass
class GeminiReader(Reader):
    def event(self, event: dict[str, Json]) -> str:
        match event.get("type"):
            case "init":
                self.session = event.get("session_id") or ""
            case "message" if event.get("role") == "assistant":
                return str(event.get("content") or "")
            case "error" if event.get("severity") != "warning":
                self.refusal = str(event.get("message") or "")
            case "result":
                self._usage(record(event.get("stats")))
                if event.get("status") == "success":
                    self.complete, self.refusal = True, ""
                else:
                    error = event.get("error")
                    self.refused(record(error).get("message") or error or self.refusal)
            case None if "error" in event:  # what is wrong before a stream begins comes as one object
                error = event["error"]
                self.refused(record(error).get("message") or error)
        return ""

    def _usage(self, stats: dict[str, Json]) -> None:
        used = Usage(
            tokens_in=count(stats.get("input_tokens")),
            tokens_cached=count(stats.get("cached")),
            tokens_out=count(stats.get("output_tokens")),
        )
        self.usage = used if used != Usage() else None


GEMINI = Provider(
    name="gemini",
    title="Gemini CLI",
    programs=("gemini",),
    argv=argv,
    reader=lambda ask: GeminiReader(),
    home={"GEMINI_CLI_HOME": "{home}"},
    homes=("$GEMINI_CLI_HOME", "~"),
    log_in="gemini, and choose a login there",
    rule="Google licenses Gemini Code Assist to one named user each, and a login is its holder's own: lend "
    "an API key instead.",
    example='{name = "gemini-2.5-pro", families = ["gemini"]}',
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
    variables=variables,
    words=patterns(
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
        broken=r"skipping system settings file",
    ),
    unsafe=re.compile(r"skipping system settings file", re.IGNORECASE),
)
