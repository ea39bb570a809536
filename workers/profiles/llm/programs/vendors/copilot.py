"""GitHub Copilot CLI: `copilot --output-format json`.

Facts: the vendor's documents and what version 1.0.102 prints. The events of a session, among them
`assistant.message_delta`, `assistant.message`, `assistant.usage`, `session.error`; at the end `result`.
"""

from __future__ import annotations

from dataclasses import dataclass

from gridq.protocol.models import Json, Usage
from workers.model_apis.usage import count
from workers.profiles.llm.programs.vendor import Ask, Provider, Reader, patterns, record


def argv(ask: Ask) -> list[str]:
    told = ["--output-format", "json", "--model", ask.model]
    told += [
        "--no-color",
        "--no-auto-update",
        "--no-ask-user",
        "--no-custom-instructions",
        "--log-level",
        "none",
    ]
    told += ["--stream", "on" if ask.partial and not ask.tools else "off"]
    if ask.tools:
        return [*told, "--allow-all-tools", *ask.args]
    return [*told, "--available-tools=none", "--disable-builtin-mcps", "--disallow-temp-dir", *ask.args]


@dataclass
class CopilotReader(Reader):
    said: str = ""

    def event(self, event: dict[str, Json]) -> str:
        data = record(event.get("data"))
        match event.get("type"):
            case "session.start":
                self.session = str(data.get("sessionId") or "")
            case "assistant.message_delta":
                return str(data.get("deltaContent") or "")
            case "assistant.message":
                self.said = str(data.get("content") or "") or self.said
            case "assistant.usage":
                before = self.usage or Usage()
                self.usage = Usage(
                    tokens_in=before.tokens_in + count(data.get("inputTokens")),
                    tokens_cached=before.tokens_cached + count(data.get("cacheReadTokens")),
                    tokens_out=before.tokens_out + count(data.get("outputTokens")),
                )
            case "session.error":
                status = data.get("statusCode")
                words = data.get("message") or data.get("errorType") or ""
                self.refused(f"{words} (HTTP {status})" if status else words)
            case "result":
                self.session = event.get("sessionId") or self.session
                self.complete = not event.get("exitCode") and not self.refusal
                return self.said if self.complete and not self.text else ""
        return ""


COPILOT = Provider(
    name="copilot",
    title="GitHub Copilot CLI",
    programs=("copilot",),
    argv=argv,
    reader=lambda ask: CopilotReader(),
    home={"COPILOT_HOME": "{home}"},
    homes=("$COPILOT_HOME", "~/.copilot"),
    log_in="copilot, then /login",
    rule="GitHub's terms allow a login to one person only, and its organisation assigns Copilot seats to "
    "named users.",
    example='{name = "claude-sonnet-4.5", families = ["claude"]}',
    environment=("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"),
    settings={"COPILOT_AUTO_UPDATE": "false"},
    words=patterns(
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
    system=False,
)
