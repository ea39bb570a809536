"""Codex: `codex exec --json`.

Facts: the vendor's documents, its open source and what version 0.171.0 prints. Each line is an
event: `thread.started`, `turn.started`, `item.*` (of kinds `agent_message`, `reasoning`, `command_execution`
…), `turn.completed` with usage, `turn.failed`, and `error`, which also tells of retries. An answer comes
whole, as the last `agent_message`; earlier ones are remarks on the way.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from gridq.protocol.models import Json, Usage
from workers.model_apis.usage import count
from workers.profiles.llm.programs.vendor import Ask, Login, Provider, Reader, patterns, record

OFF = (
    *("shell_tool", "unified_exec", "apply_patch_freeform", "view_image", "image_generation", "multi_agent"),
    *("apps", "plugins", "remote_plugin", "hooks", "goals", "skill_search", "tool_suggest", "sleep_tool"),
    *("browser_use", "browser_use_external", "in_app_browser", "computer_use", "code_mode_host"),
    *("shell_snapshot", "skill_mcp_dependency_install"),
)
"""Its features that are tools or bring some. Set as settings, not by --disable, which refuses a name that a
version does not know.
"""

QUIET = (
    'approval_policy="never"',
    "analytics.enabled=false",
    "check_for_update_on_startup=false",
    "features.unbounded_connection_retries=false",
)


def argv(ask: Ask) -> list[str]:
    told = ["exec", "--json", "--skip-git-repo-check", "--ephemeral", "--color", "never"]
    told += ["--model", ask.model, "--cd", str(ask.folder)]
    settings = list(QUIET)
    if ask.tools:
        told += ["--sandbox", "workspace-write"]
    else:
        # without the owner's settings no server of tools is started; the sandbox is read-only all the same
        told += ["--sandbox", "read-only", "--ignore-user-config", "--ignore-rules"]
        settings += [*(f"features.{name}=false" for name in OFF), 'web_search="disabled"']
        settings += ["project_doc_max_bytes=0"]
    if ask.system:
        # as a file, for what stands in an argv is seen by all of a machine's users
        settings.append(f"model_instructions_file={json.dumps(ask.file('system.md', ask.system))}")
    for setting in settings:
        told += ["-c", setting]
    if ask.schema is not None:
        told += ["--output-schema", ask.file("schema.json", json.dumps(ask.schema))]
    return [*told, *ask.args, "-"]


@dataclass
class CodexReader(Reader):
    said: str = ""
    trouble: str = ""

    def event(self, event: dict[str, Json]) -> str:
        match event.get("type"):
            case "thread.started":
                self.session = event.get("thread_id") or ""
            case "item.completed":
                item = record(event.get("item"))
                if item.get("type") == "agent_message":
                    self.said = str(item.get("text") or "")
            case "error":
                self.trouble = str(event.get("message") or "")
                self.refusal = self.refusal or self.trouble
            case "turn.failed":
                error = event.get("error")
                self.refused(record(error).get("message") or error or self.trouble)
            case "turn.completed":
                self._usage(record(event.get("usage")))
                self.complete, self.refusal = True, ""
                return self.said
        return ""

    def _usage(self, usage: dict[str, Json]) -> None:
        if usage:
            self.usage = Usage(
                tokens_in=count(usage.get("input_tokens")),
                tokens_cached=count(usage.get("cached_input_tokens")),
                tokens_cache_written=count(usage.get("cache_write_input_tokens")),
                tokens_out=count(usage.get("output_tokens")),
                tokens_reasoning=count(usage.get("reasoning_output_tokens")),
            )


CODEX = Provider(
    name="codex",
    title="Codex",
    programs=("codex",),
    argv=argv,
    reader=lambda ask: CodexReader(),
    home={"CODEX_HOME": "{home}"},
    homes=("$CODEX_HOME", "~/.codex"),
    log_in="codex login",
    rule="OpenAI's terms let nobody but its holder use an account: lend a seat of a plan whose terms allow "
    "it, or an API key.",
    example='{name = "gpt-5-codex", families = ["gpt-5"]}',
    login=Login(("login", "status"), re.compile(r"not logged in", re.IGNORECASE)),
    words=patterns(
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
    schema=True,
)
