"""GitHub Copilot CLI: `copilot --output-format json`.

Source: the vendor's documentation and the output of version 1.0.102. Each line is an event of the session,
such as `assistant.message_delta`, `assistant.message`, `assistant.usage` and `session.error`, and finally
`result`.
"""

from __future__ import annotations

from dataclasses import dataclass

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


def make_arguments(call: ProgramCall) -> list[str]:
    arguments = ["--output-format", "json", "--model", call.model]
    arguments += [
        "--no-color",
        "--no-auto-update",
        "--no-ask-user",
        "--no-custom-instructions",
        "--log-level",
        "none",
    ]
    arguments += ["--stream", "on" if call.streams and not call.allows_tools else "off"]
    if call.allows_tools:
        return [*arguments, "--allow-all-tools", *call.args]
    return [*arguments, "--available-tools=none", "--disable-builtin-mcps", "--disallow-temp-dir", *call.args]


@dataclass
class CopilotParser(OutputParser):
    last_message: str = ""

    def add_event(self, event: dict[str, Json]) -> str:
        data = as_object(event.get("data"))
        match event.get("type"):
            case "assistant.message_delta":
                return str(data.get("deltaContent") or "")
            case "assistant.message":
                self.last_message = str(data.get("content") or "") or self.last_message
            case "assistant.usage":
                before = self.usage or Usage()
                self.usage = Usage(
                    tokens_in=before.tokens_in + parse_count(data.get("inputTokens")),
                    tokens_cached=before.tokens_cached + parse_count(data.get("cacheReadTokens")),
                    tokens_out=before.tokens_out + parse_count(data.get("outputTokens")),
                )
            case "session.error":
                status = data.get("statusCode")
                message = data.get("message") or data.get("errorType") or ""
                self.refuse(f"{message} (HTTP {status})" if status else message)
            case "result":
                self.is_complete = not event.get("exitCode") and not self.refusal
                return self.last_message if self.is_complete and not self.has_text else ""
        return ""


COPILOT = VendorProgram(
    name="copilot",
    title="GitHub Copilot CLI",
    names=("copilot",),
    make_arguments=make_arguments,
    make_parser=lambda call: CopilotParser(),
    home={"COPILOT_HOME": "{home}"},
    homes=("$COPILOT_HOME", "~/.copilot"),
    log_in="copilot, then /login",
    rule="GitHub's terms allow only one person to use a login, and organizations assign Copilot seats to "
    "named users.",
    example='{name = "claude-sonnet-4.5", families = ["claude"]}',
    proven="1.0.102",
    environment=("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"),
    settings={"COPILOT_AUTO_UPDATE": "false"},
    commands=SLASH_COMMAND,
    failure_patterns=compile_patterns(
        expired=r"token (has )?expired|bad credentials|session expired",
        logged_out=r"no authentication information|not (logged|signed) in|/login|unauthorized|"
        r"authentication (failed|required)|\(HTTP 40[13]\)",
        no_credit=r"no quota|quota exceeded|premium requests?.{0,60}(exceeded|used|left)|credit balance|"
        r"\b402\b|billing",
        limited=r"rate.?limit|too many requests|\b429\b",
        overloaded=r"overloaded|unavailable|at capacity|\(HTTP 5\d\d\)|\b(502|503|504)\b",
        no_model=r"model .{0,80}not (available|supported|found|enabled)|invalid model|\bfrom --model\b",
        refused=r"context (window|length)|prompt is too long|token count|\(HTTP 4(00|13)\)",
    ),
    supports_system=False,
)
