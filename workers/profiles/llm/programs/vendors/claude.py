"""Claude Code: `claude -p`.

Facts: the vendor's CLI reference and what version 2.1.332 prints. With stream-json each line is an event:
`system`, `stream_event` (the API's own events, with --include-partial-messages), `assistant`, `user`,
`rate_limit_event` and, at the end, `result` with usage and cost. `is_error` marks a refusal; its text stands
in `result`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from gridq.protocol.models import Json, Usage
from workers.model_apis.usage import anthropic_usage
from workers.profiles.llm.programs.vendor import Ask, Login, Provider, Reader, patterns, record

FINISH = {"max_tokens": "length", "model_context_window_exceeded": "length", "refusal": "content_filter"}

NO_FILES = {"CLAUDE_CODE_DISABLE_FILE_MENTIONS": "1", "CLAUDE_CODE_DISABLE_ATTACHMENTS": "1"}
"""Without these the program itself reads what a prompt names by `@path`, a file or a folder anywhere on the
machine, and sends it along; it uses no tool for that. The second also keeps it from telling the model that a
file was named.
"""

COMMAND = re.compile(r"[^\w!-~]*/")
"""A slash before all else that can be seen: white space and odd characters ahead of it may be cut off."""


def argv(ask: Ask) -> list[str]:
    told = ["-p", "--output-format", "stream-json", "--verbose", "--model", ask.model]
    told += ["--no-session-persistence", "--strict-mcp-config", "--disable-slash-commands"]
    if ask.partial and not ask.tools and ask.schema is None:
        told.append("--include-partial-messages")
    if ask.tools:
        if ask.system:
            told += ["--append-system-prompt-file", ask.file("system.md", ask.system)]
    else:
        # no tool, none of the settings of the owner or a project: no hooks, no memory files. --tools takes
        # all that follows up to the next flag.
        told += ["--tools", "", "--setting-sources", ""]
        told += ["--system-prompt-file", ask.file("system.md", ask.system)]
    if ask.schema is not None:
        told += ["--json-schema", json.dumps(ask.schema)]
    return [*told, *ask.args]


def variables(ask: Ask) -> Mapping[str, str]:
    return {} if ask.tools else NO_FILES


@dataclass
class ClaudeReader(Reader):
    limited: str = ""

    def event(self, event: dict[str, Json]) -> str:
        self.session = event.get("session_id") or self.session
        match event.get("type"):
            case "stream_event":
                told = record(event.get("event"))
                delta = record(told.get("delta"))
                if told.get("type") == "content_block_delta" and delta.get("type") == "text_delta":
                    return str(delta.get("text") or "")
            case "rate_limit_event":
                told = record(event.get("rate_limit_info"))
                if told.get("status") == "rejected":
                    self.limited = f" resets_at: {told.get('resetsAt')}"
            case "result":
                return self._result(event)
        return ""

    def _result(self, event: dict[str, Json]) -> str:
        usage = anthropic_usage(event.get("usage"))
        self.usage = usage if usage != Usage() else None
        cost = event.get("total_cost_usd")
        self.dollars = float(cost) if isinstance(cost, int | float) else None
        answer = event.get("result")
        if event.get("is_error") or event.get("subtype") != "success":
            status = event.get("api_error_status")
            words = answer or "; ".join(map(str, event.get("errors") or ())) or str(event.get("subtype"))
            self.refused(f"{words}{f' (HTTP {status})' if status else ''}{self.limited}")
            return ""
        self.complete = True
        self.finish = FINISH.get(event.get("stop_reason") or "", "stop")
        structured = event.get("structured_output")
        if structured is not None:
            return json.dumps(structured, ensure_ascii=False)
        return answer if isinstance(answer, str) and not self.text else ""


CLAUDE = Provider(
    name="claude",
    title="Claude Code",
    programs=("claude",),
    argv=argv,
    reader=lambda ask: ClaudeReader(),
    home={"CLAUDE_CONFIG_DIR": "{home}"},
    homes=("$CLAUDE_CONFIG_DIR", "~/.claude"),
    log_in="claude auth login",
    rule="Anthropic's consumer terms let nobody but its holder use an account: lend a seat of a plan whose "
    "terms allow it, or an API key.",
    example='{name = "sonnet", families = ["claude"]}',
    login=Login(("auth", "status"), re.compile(r'"loggedIn":\s*false|not logged in', re.IGNORECASE)),
    settings={
        "DISABLE_AUTOUPDATER": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_RETRIES": "0",  # the grid has other seats to try; its own retries take minutes
        "CLAUDE_CODE_DISABLE_NONSTREAMING_FALLBACK": "1",  # else a stream that is cut is asked and paid twice
    },
    variables=variables,
    commands=COMMAND,
    words=patterns(
        expired=r"OAuth token (has )?expired|token (has been )?revoked|session expired",
        logged_out=r"not logged in|please run /login|invalid api key|authentication_(error|failed)|"
        r"OAuth account information not found|invalid (bearer|x-api-key)|\(HTTP 40[13]\)",
        no_credit=r"credit balance is too low|billing_error|out of (extra )?usage credits|\(HTTP 402\)",
        limited=r"limit reached|hit your .{0,20}limit|rate_limit_error|resets_at: \d|\(HTTP 429\)",
        overloaded=r"overloaded|\(HTTP 5\d\d\)",
        no_model=r"issue with the selected model|may not exist or you may not have access|\(HTTP 404\)",
        refused=r"prompt is too long|usage policy|\(HTTP 4(00|13)\)",
    ),
    schema=True,
)
