"""Make the tables of the documentation that the code already holds.

A page has a line `<!-- generate: NAME -->` where the table belongs, and below it a line in italics for
readers of the source. MkDocs calls this file as a hook while it builds the site (`make docs`), so a table is
never stale. `python docs/generate.py NAME` prints one.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
MARK = re.compile(r"^<!-- generate: ([\w-]+)(?: ([^\n]+?))? -->$(?:\n\*[^\n]+\*$)?", re.M)
COMMAND = re.compile(r"^### `gridq ([\w-]+)`$", re.M)
MERMAID = re.compile(r"^```mermaid\nstateDiagram-v2\n(.*?)^```$", re.M | re.S)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; a `|` inside a cell is escaped."""
    lines = [header, ["---"] * len(header), *([_escape(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _escape(cell: str) -> str:
    return re.sub(r"(?<!\\)[|]", r"\\|", cell)


def settings() -> str:
    """Return every setting of gridq/config/settings.py."""
    from gridq.config.settings import Settings

    rows = [
        (f"`GRIDQ_{name.upper()}`", _default(field.default), _sentence(field.description))
        for name, field in Settings.model_fields.items()
    ]
    return table(("variable", "default", "what it does"), rows)


def gateway_settings() -> str:
    """Return every option of gridq/gateway/options.py."""
    from gridq.gateway.options import PREFIX, GatewayOptions

    rows = [
        (f"`{PREFIX}{name.upper()}`", _default(field.default), _sentence(field.description))
        for name, field in GatewayOptions.model_fields.items()
    ]
    return table(("variable", "default", "what it does"), rows)


def job_options() -> str:
    """Return every option of a job, from gridq/jobs/record.py."""
    from gridq.jobs.record import JobOptions

    rows = [
        (f"`{name}`", _default(field.default), _sentence(field.description or JOB_OPTIONS[name]))
        for name, field in JobOptions.model_fields.items()
    ]
    return table(("option", "default", "what it does"), rows)


JOB_OPTIONS = {
    "agent": "the name of who submits; on a grid with API keys it is the key's",
    "priority": "`interactive` or `batch`",
}
"""Options whose name says almost everything."""


def metrics() -> str:
    """Return every metric of gridq/gateway/metrics/catalogue.py."""
    from gridq.gateway.metrics.catalogue import METRICS

    rows = [
        (f"`{name}`", measure.kind, ", ".join(f"`{label}`" for label in measure.labels) or "-", measure.help)
        for name, measure in METRICS.items()
    ]
    return table(("metric", "kind", "labels", "what it says"), rows)


def profile_metrics() -> str:
    """Return every metric that the profiles gpu and llm report."""
    from workers.profiles.gpu import GpuProfile
    from workers.profiles.llm import LlmProfile

    helps = {**GpuProfile.metric_helps, **LlmProfile.metric_helps}
    return table(("metric", "what it says"), [(f"`gridq_{name}`", text) for name, text in helps.items()])


def stages() -> str:
    """Return every built-in stage of gridq/stages/catalogue.json."""
    from gridq.stages import load_builtin_specs

    rows = [(f"`{spec['name']}`", str(spec["description"]).strip()) for spec in load_builtin_specs()]
    return table(("stage", "what it does"), rows)


def request_fields(name: str) -> str:
    """Return what becomes of each field of a model API's request at the seats of other formats."""
    from workers.model_apis.fields import chat, messages, responses

    tables = {
        "chat": (chat.CHAT_TO_MESSAGES, chat.CHAT_TO_GOOGLE, chat.CHAT_TO_ENGINE, chat.CHAT_TO_PROGRAM),
        "embeddings": (chat.EMBEDDINGS_TO_GOOGLE,),
        "messages": (messages.MESSAGES_TO_OPENAI, messages.MESSAGES_TO_CHAT, messages.MESSAGES_TO_GOOGLE),
        "responses": (
            responses.RESPONSES_TO_RESPONSES,
            responses.RESPONSES_TO_OPENAI,
            responses.RESPONSES_TO_CHAT,
        ),
    }[name]
    before = chat.LEGACY if name == "chat" else {}
    names = dict.fromkeys(field for each in tables for field in (*each.rules, *before))
    rows = [
        (f"`{field}`", *(_field_use(before.get(field) or each.rules.get(field), each) for each in tables))
        for field in sorted(names)
    ]
    return table(("field", *(each.target for each in tables)), rows)


def _field_use(rule: Any, fields: Any) -> str:
    """Return in a few words what becomes of a field."""
    if rule is None:
        return "refused" if fields.refuses_unknown else "passed"
    if rule.use == "passed":
        return f"`{rule.becomes}`" if rule.becomes else "passed"
    if rule.use == "translated":
        return str(rule.becomes)
    word = "left out" if rule.use == "hint" else "refused"
    if rule.expected != "absent":
        word = f"only {rule.expected}"
    return f"{word}: {rule.becomes}" if rule.becomes else word


def errors() -> str:
    """Return every error code by family: when it is raised, what to do, and its HTTP status."""
    from gridq.gateway.http.errors import find_status

    families: dict[str, list[Sequence[str]]] = defaultdict(list)
    for cls in sorted(error_classes(), key=lambda cls: cls.code):
        cell = f'<a id="{cls.code}"></a>`{cls.code}`'
        row = (cell, when(cls), cls.remedy, str(find_status(cls("", {}))))
        families[cls.code.partition(".")[0]].append(row)
    header = ("code", "when", "what to do", "HTTP")
    parts = [f"### {family}\n\n{table(header, rows)}" for family, rows in sorted(families.items())]
    return "\n\n".join(parts)


def error_classes() -> list[Any]:
    """Return every class of gridq.errors."""
    from gridq import errors as module

    found = [getattr(module, name) for name in module.__all__]
    return [cls for cls in found if isinstance(cls, type)]


def when(cls: type) -> str:
    """Return the first paragraph of an error's docstring as one line."""
    return " ".join((cls.__doc__ or "").partition("\n\n")[0].split())


def command(name: str) -> str:
    """Return usage, arguments and options of one command, as typer knows them."""
    import typer.main

    from gridq import cli

    cli.load_commands()
    group = typer.main.get_group(cli.app)
    found = group.get_command(typer.Context(group), name)
    below = getattr(found, "commands", {})
    own = [] if below and not getattr(found, "invoke_without_command", False) else [(f"gridq {name}", found)]
    return "\n\n".join(_usage(path, one) for path, one in [*own, *_subcommands(name, below)])


def _subcommands(name: str, below: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(f"gridq {name} {sub}", one) for sub, one in below.items() if not one.hidden]


def _usage(path: str, one: Any) -> str:
    params = [param for param in one.params if not getattr(param, "hidden", False)]
    arguments = [param for param in params if param.param_type_name == "argument"]
    options = [
        param for param in params if param.param_type_name == "option" and param.name not in EVERYWHERE
    ]
    shown = " ".join(_argument(param) for param in arguments)
    usage = f"`{' '.join(filter(None, [path, shown, '[options]' if options else '']))}`"
    rows = [(_names(param), _sentence(getattr(param, "help", None))) for param in options]
    return usage + (f"\n\n{table(('option', 'what it does'), rows)}" if rows else "")


EVERYWHERE = {"json", "debug", "help"}
"""Options of (almost) every command, which the page explains once."""


def _argument(param: Any) -> str:
    name = (param.metavar or param.name or "").upper().strip("[]")
    name += "…" if param.nargs == -1 and not name.endswith("…") else ""
    return name if param.required else f"[{name}]"


def _names(param: Any) -> str:
    names = ", ".join(f"`{name}`" for name in [*param.opts, *param.secondary_opts])
    kind = param.metavar or getattr(getattr(param, "type", None), "name", "") or "VALUE"
    return names if param.is_flag else f"{names} `{kind.upper()}`"


def _default(value: Any) -> str:
    from pydantic import SecretStr

    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if value in (None, "", ()):
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        value = ",".join(value)
    if isinstance(value, Path):
        value = str(value).replace(str(Path.home()), "~")
    return (
        f"{value:g}" if isinstance(value, float) else f"{value}" if isinstance(value, int) else f"`{value}`"
    )


def _sentence(text: str | None) -> str:
    text = " ".join((text or "").split()).rstrip(".")
    return text[:1].upper() + text[1:]


def draw_states(page: str) -> str:
    """Replace Mermaid's state diagrams, which need a script from elsewhere, with a table of their arrows."""

    def arrows(match: re.Match[str]) -> str:
        found = re.findall(r"^ *(\S+) --> (\S+): (.+)$", match[1], re.M)
        rows = [("start" if before == "[*]" else before, after, scripts) for before, after, scripts in found]
        return table(("from", "to", "moved by"), rows)

    return MERMAID.sub(arrows, page)


GENERATORS: dict[str, Callable[..., str]] = {
    "command": command,
    "errors": errors,
    "gateway-settings": gateway_settings,
    "job-options": job_options,
    "metrics": metrics,
    "profile_metrics": profile_metrics,
    "request-fields": request_fields,
    "settings": settings,
    "stages": stages,
}


def fill(page: str) -> str:
    """Return a page with every mark replaced by what it names."""
    page = MARK.sub(lambda match: GENERATORS[match[1]](*filter(None, [match[2]])), page)
    return draw_states(page)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fill in a page; MkDocs calls this for each."""
    if page.file.src_uri == "reference/cli.md":
        markdown = COMMAND.sub(lambda match: f"{match[0]}\n\n{command(match[1])}", markdown)
    return fill(markdown)


if __name__ == "__main__":
    print(GENERATORS[sys.argv[1]](*sys.argv[2:]))
