"""Claude Code: `claude -p`.

Source: the vendor's CLI reference and the output of version 2.1.332. With stream-json each line is an event:
`system`, `stream_event` (the API's own events, with --include-partial-messages), `assistant`, `user`,
`rate_limit_event`, and finally `result` with usage and cost. `is_error` marks a failure, with its message in
`result`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from gridq.protocol.models import Json, Usage
from workers.model_apis.usage import parse_anthropic_usage
from workers.profiles.llm.programs.vendor import (
    SLASH_COMMAND,
    LoginCheck,
    OutputParser,
    ProgramCall,
    VendorProgram,
    as_object,
    compile_patterns,
)

FINISH_REASONS = {
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
}

NO_FILE_VARIABLES = {"CLAUDE_CODE_DISABLE_FILE_MENTIONS": "1", "CLAUDE_CODE_DISABLE_ATTACHMENTS": "1"}
"""Without the first, the program itself reads a file or folder that a prompt names as `@path`, anywhere on
the machine, and sends it along, without using a tool. The second also keeps it from telling the model that
the prompt named a file.
"""


def make_arguments(call: ProgramCall) -> list[str]:
    arguments = ["-p", "--output-format", "stream-json", "--verbose", "--model", call.model]
    arguments += ["--no-session-persistence", "--strict-mcp-config", "--disable-slash-commands"]
    if call.streams and not call.allows_tools and call.schema is None:
        arguments.append("--include-partial-messages")
    if call.allows_tools:
        if call.system:
            arguments += ["--append-system-prompt-file", call.write_file("system.md", call.system)]
    else:
        # No tools, and no settings of the owner or a project, so no hooks and no memory files. --tools takes
        # all arguments up to the next flag.
        arguments += ["--tools", "", "--setting-sources", ""]
        arguments += ["--system-prompt-file", call.write_file("system.md", call.system)]
    if call.schema is not None:
        arguments += ["--json-schema", json.dumps(call.schema)]
    return [*arguments, *call.args]


def make_variables(call: ProgramCall) -> Mapping[str, str]:
    return {} if call.allows_tools else NO_FILE_VARIABLES


@dataclass
class ClaudeParser(OutputParser):
    limit_reset: str = ""

    def add_event(self, event: dict[str, Json]) -> str:
        match event.get("type"):
            case "stream_event":
                api_event = as_object(event.get("event"))
                delta = as_object(api_event.get("delta"))
                if api_event.get("type") == "content_block_delta" and delta.get("type") == "text_delta":
                    return str(delta.get("text") or "")
            case "rate_limit_event":
                limit = as_object(event.get("rate_limit_info"))
                if limit.get("status") == "rejected":
                    self.limit_reset = f" resets_at: {limit.get('resetsAt')}"
            case "result":
                return self._add_result(event)
        return ""

    def _add_result(self, event: dict[str, Json]) -> str:
        usage = parse_anthropic_usage(event.get("usage"))
        self.usage = usage if usage != Usage() else None
        cost = event.get("total_cost_usd")
        self.dollars = float(cost) if isinstance(cost, int | float) else None
        answer = event.get("result")
        if event.get("is_error") or event.get("subtype") != "success":
            status = event.get("api_error_status")
            message = answer or "; ".join(map(str, event.get("errors") or ())) or str(event.get("subtype"))
            self.refuse(f"{message}{f' (HTTP {status})' if status else ''}{self.limit_reset}")
            return ""
        self.is_complete = True
        self.finish_reason = FINISH_REASONS.get(event.get("stop_reason") or "", "stop")
        structured = event.get("structured_output")
        if structured is not None:
            return json.dumps(structured, ensure_ascii=False)
        return answer if isinstance(answer, str) and not self.has_text else ""


CLAUDE = VendorProgram(
    name="claude",
    title="Claude Code",
    names=("claude",),
    make_arguments=make_arguments,
    make_parser=lambda call: ClaudeParser(),
    home={"CLAUDE_CONFIG_DIR": "{home}"},
    homes=("$CLAUDE_CONFIG_DIR", "~/.claude"),
    log_in="claude auth login",
    rule="Anthropic's consumer terms allow only the holder to use an account. Lend a seat of a plan whose "
    "terms allow it, or an API key.",
    example='{name = "sonnet", families = ["claude"]}',
    proven="2.1.332",
    login_check=LoginCheck(
        ("auth", "status"), re.compile(r'"loggedIn":\s*false|not logged in', re.IGNORECASE)
    ),
    settings={
        "DISABLE_AUTOUPDATER": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_RETRIES": "0",  # the grid tries other seats; the program's retries take minutes
        "CLAUDE_CODE_DISABLE_NONSTREAMING_FALLBACK": "1",  # a broken stream would be billed twice
    },
    make_variables=make_variables,
    commands=SLASH_COMMAND,
    failure_patterns=compile_patterns(
        expired=r"OAuth token (has )?expired|token (has been )?revoked|session expired",
        logged_out=r"not logged in|please run /login|invalid api key|authentication_(error|failed)|"
        r"OAuth account information not found|invalid (bearer|x-api-key)|\(HTTP 40[13]\)",
        no_credit=r"credit balance is too low|billing_error|out of (extra )?usage credits|\(HTTP 402\)",
        limited=r"limit reached|hit your .{0,20}limit|rate_limit_error|resets_at: \d|\(HTTP 429\)",
        overloaded=r"overloaded|\(HTTP 5\d\d\)",
        no_model=r"issue with the selected model|may not exist or you may not have access|\(HTTP 404\)",
        refused=r"prompt is too long|usage policy|\(HTTP 4(00|13)\)",
    ),
    supports_schema=True,
)
