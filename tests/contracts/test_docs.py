"""The documentation names everything there is, its examples are valid, and it builds without a warning."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import pytest
import typer.main

from gridq import cli
from gridq.cli.commands import quota
from gridq.cli.commands.validate import validate_graph
from gridq.config.settings import Settings
from gridq.errors import AgentJobsExceeded, AgentMoneyExceeded, QueueFull, TeamJobsExceeded, TeamMoneyExceeded
from gridq.gateway.metrics.catalogue import METRICS
from gridq.gateway.options import PREFIX, GatewayOptions
from gridq.graph import catalogue
from gridq.graph.nodes import parse
from gridq.graph.types import KINDS, parse_type
from gridq.jobs.record import JobOptions
from gridq.limits.accounts import Account, AccountsReport, Window
from gridq.limits.ledger import ATTEMPTS, Entry
from gridq.limits.quotas_file import parse as parse_quotas
from gridq.stages import load_builtin_specs
from gridq.submission.refusal_details import explain_refusal
from gridq.telemetry.narration import EVENTS
from workers.machine.seats import LocalTable
from workers.model_apis.model_catalogue import Model
from workers.owner.lend import Lend, Owners
from workers.profiles.gpu import GpuProfile
from workers.profiles.gpu.capability import GpuConfig
from workers.profiles.llm import LlmProfile
from workers.profiles.llm.capability import DeclaredModel, LlmSeat
from workers.profiles.llm.programs.program_seats import is_program_table
from workers.profiles.llm.programs.seat_table import ProgramSeat
from workers.profiles.llm.programs.seat_table import parse_seat as parse_program
from workers.profiles.llm.seats_from_table import parse_seats as read_endpoints

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"
PAGES = sorted([*DOCS.rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])
OPERATORS = "Stage RemoteStage Const Sequential Parallel Branch Fanout Merge Retry Let"


def _load_generator() -> ModuleType:
    """Import docs/generate.py, the hook that makes the tables."""
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATE = _load_generator()


def read(page: str) -> str:
    """Return the source of a page, with its generated tables."""
    return GENERATE.fill((DOCS / page).read_text("utf-8"))


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize(
    ("model", "prefix"), [(Settings, "GRIDQ_"), (GatewayOptions, PREFIX)], ids=["grid", "gateway"]
)
def test_every_setting_is_documented_with_its_default(model: type[Settings], prefix: str) -> None:
    text = read("reference/settings.md")
    for name, field in model.model_fields.items():
        assert field.description, name
        row = next((line for line in text.splitlines() if f"`{prefix}{name.upper()}`" in line), None)
        assert row is not None, name
        if isinstance(field.default, int | float) and not isinstance(field.default, bool):
            assert f"| {field.default:g} |" in row or f"| {int(field.default)} |" in row, row


def test_every_built_in_stage_is_documented() -> None:
    text = read("reference/stages.md")
    for spec in load_builtin_specs():
        described = spec["description"].strip().replace("|", r"\|")
        assert f"| `{spec['name']}` | {described} |" in text


def test_every_metric_is_documented() -> None:
    text = read("reference/metrics.md")
    for name, metric in METRICS.items():
        labels = ", ".join(f"`{label}`" for label in metric.labels) or "-"
        assert f"| `{name}` | {metric.kind} | {labels} | {metric.help} |" in text


def test_every_option_of_a_job_is_documented() -> None:
    text = read("reference/graphs.md")
    for name in JobOptions.model_fields:
        assert re.search(rf"^\| `{name}` \| [^|]+ \| [\w`][^|]+ \|$", text, re.M), name


def test_every_log_event_is_documented() -> None:
    text = (REFERENCE / "log-events.md").read_text("utf-8")
    assert set(re.findall(r"^\| `([\w ]+)` \|", text, re.M)) == EVENTS.keys()


def test_every_error_code_says_when_and_what_to_do() -> None:
    classes = GENERATE.error_classes()
    assert len(classes) > 60
    text = read("reference/errors.md")
    for cls in classes:
        assert GENERATE.when(cls), cls
        assert cls.remedy, cls
        assert re.search(rf"`{re.escape(cls.code)}` \| .+ \| .+ \| [1-5]\d\d \|$", text, re.M), cls.code


def find_fields(page: str, section: str = "") -> set[str]:
    """Return the names in the first column of the tables of a page's section."""
    text = (DOCS / page).read_text("utf-8")
    if section:
        text = text.partition(section)[2].partition("\n## ")[0]
    cells = re.findall(r"^\| (`[^|]+`) \|", text, re.M)
    return {name for cell in cells for name in re.findall(r"`([\w.]+)`", cell)}


def test_every_field_and_kind_of_a_ledger_entry_is_documented() -> None:
    names = {field.name for field in fields(Entry)} | {"charged"}
    assert find_fields("reference/ledger.md") == names | {*ATTEMPTS, "job", "refill", "begin", "carried"}


def test_every_field_of_gridq_quota_is_documented() -> None:
    window = Window("week", "calendar", 1_000, 2_000)
    account = Account("agent", "ann", "jobs a week", 5, 1, resource="jobs", window=window)
    (shown,) = quota.to_json(AccountsReport("UTC", None, False, (account,)))["accounts"]
    named = find_fields("reference/quotas-file.md", "\n## `gridq quota --json`\n")
    assert named == shown.keys() | {f"window.{name}" for name in shown["window"]}


def test_every_field_of_a_refusal_is_documented() -> None:
    section = "\n### Refusals\n"
    assert find_fields("reference/http.md", section) >= explain_refusal(QueueFull("full", {})).keys()


def test_every_key_of_the_seats_file_is_documented() -> None:
    text = re.sub(
        r"^```.*?^```", "", (REFERENCE / "seats-file.md").read_text(), flags=re.DOTALL | re.MULTILINE
    )
    documented = {word for code in re.findall(r"`([^`\n]+)`", text) for word in re.findall(r"\w+", code)}
    for table in (LocalTable, LlmSeat, ProgramSeat, GpuConfig, Model, DeclaredModel, Lend):
        assert set(table.model_fields) - documented == set(), table.__name__


@pytest.mark.parametrize(
    ("page", "programs"),
    [
        ("how-to/owner/lend.md", ["claude"]),
        ("how-to/owner/programs.md", ["claude"]),
        ("reference/seats-file.md", ["claude", "claude-work"]),
    ],
)
def test_the_seats_files_in_the_docs_are_right(page: str, programs: list[str]) -> None:
    text = (DOCS / page).read_text()
    examples = [tomllib.loads(example) for example in re.findall(r"```toml\n(.*?)```", text, re.DOTALL)]
    tables = [table for example in examples for table in Owners().split(example).get("llm", [])]
    seats = [parse_program(table, "llm") for table in tables if is_program_table(table)]
    assert [seat.name for seat in seats] == programs
    read_endpoints(tables, {})


def test_the_page_for_a_seats_owner_stays_short() -> None:
    text = (DOCS / "how-to" / "owner" / "lend.md").read_text()
    assert len(text.splitlines()) <= 130
    assert len(text.split()) <= 1200


def test_the_quotas_file_of_the_docs_is_right_and_has_every_key() -> None:
    text = (REFERENCE / "quotas-file.md").read_text()
    example = re.search(r"```toml\n(.*?)```", text, re.DOTALL)
    assert example is not None
    limits = parse_quotas(example[1], "quotas.toml")
    assert (set(limits.agents), set(limits.teams)) == ({"ann", "*"}, {"research"})
    for name in ["team", "dollars", "cents", "jobs", "period"]:
        assert re.search(rf"`(monthly_|budget_)?{name}`", text), name
    assert "`requests_per_minute`" in text
    page = (DOCS / "how-to" / "operator" / "quotas.md").read_text()
    for cls in (AgentMoneyExceeded, AgentJobsExceeded, TeamMoneyExceeded, TeamJobsExceeded):
        assert f"`{cls.code}`" in page
    for block in re.findall(r"```toml\n(.*?)```", page, re.DOTALL):
        parse_quotas(block, "quotas.toml")


@pytest.mark.parametrize("op", OPERATORS.split())
def test_every_operator_is_documented_with_a_valid_example(op: str) -> None:
    text = (REFERENCE / "graphs.md").read_text()
    assert f"| `{op}` |" in text
    section = text.partition(f"\n### `{op}`\n")[2].partition("\n##")[0]
    (example,) = re.findall(r"```json\n(.*?)```", section, re.DOTALL)
    assert f'"op": "{op}"' in example
    assert validate_graph(example, Settings())["steps"] >= 0


def test_every_kind_of_type_is_documented() -> None:
    section = (REFERENCE / "graphs.md").read_text("utf-8").partition("\n## Types\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", section, re.M)))) == {
        "kind",
        *KINDS,
    }
    (example,) = re.findall(r"```json\n(.*?)```", section, re.DOTALL)
    parse_type(json.loads(example), "")


def test_every_key_of_a_stage_file_is_documented() -> None:
    page = (DOCS / "how-to" / "agent" / "stages.md").read_text("utf-8")
    section = page.partition("\n## Stage files\n")[2]
    keys = re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", section, re.M)))
    assert set(keys) == set(catalogue._KEYS)
    for lifecycle in catalogue.LIFECYCLES:
        assert f"`{lifecycle}`" in section
    (example,) = re.findall(r"```json\n(.*?)```", section, re.DOTALL)
    assert catalogue.StageSpec.from_json(json.loads(example)).name == "summarise"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_graph_and_json_of_a_page_is_valid(page: Path) -> None:
    for block in re.findall(r"^```json\n(.*?)^```", page.read_text("utf-8"), re.M | re.S):
        value = json.loads(block)
        if "root" in value:
            parse(block)


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.json")), ids=lambda path: path.name)
def test_every_example_is_json_and_a_graph_or_an_input(path: Path) -> None:
    if "input" in path.name:
        assert isinstance(json.loads(path.read_text()), dict)
    else:
        parse(path.read_text())


def test_the_tutorial_goes_from_up_to_down() -> None:
    text = (DOCS / "tutorial.md").read_text("utf-8")
    for step in (
        "gridq up",
        "gridq run",
        "gridq.stream",
        "@stage",
        "gridq cancel",
        "quota.agent_jobs",
        "gridq down",
    ):
        assert step in text, step
    assert "docs/tutorial.md" in (ROOT / "README.md").read_text("utf-8")


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_contains_no_secret_and_no_local_path(page: Path) -> None:
    """Recorded outputs contain no folder of the machine, and no key, token or password."""
    text = page.read_text("utf-8")
    assert "<!-- output:" not in text
    assert not re.findall(r"(?<![\w.])/(?:tmp|work|root|home)\b", text)
    assert not re.findall(r"gq_[0-9a-f]{6,}|gqjoin_|redis://:[^ ]*@", text)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_prose_of_a_page_is_narrow(page: Path) -> None:
    """Lines end at about 100 characters; tables, links, code and recorded outputs may be wider."""
    prose = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.M | re.S)
    wide = [line for line in prose.splitlines() if len(line) > 110 and not re.match(r"[|<]|Tests?:", line)]
    assert [line for line in wide if "](" not in line] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_setting_code_and_metric_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text("utf-8")
    settings = {f"GRIDQ_{name.upper()}" for name in Settings.model_fields}
    settings |= {f"{PREFIX}{name.upper()}" for name in GatewayOptions.model_fields}
    settings |= {f"{name}_FILE" for name in settings} | ELSEWHERE
    assert set(re.findall(r"\bGRIDQ_[A-Z][A-Z_]*[A-Z]\b", text)) - settings == set()
    codes = {cls.code for cls in GENERATE.error_classes()}
    families = "|".join(sorted({code.partition(".")[0] for code in codes}))
    named = set(re.findall(rf"`((?:{families})\.[a-z]\w*)`", text))
    assert named - codes - {"config.toml", "grid.json", "http.alice"} == set()
    reported = {f"gridq_{name}" for profile in (GpuProfile, LlmProfile) for name in profile.metric_helps}
    metrics = set(re.findall(r"\bgridq_[a-z_]+\b", text)) - METRICS.keys() - reported
    assert metrics - {"gridq_dataset", "gridq_code"} == set()


ELSEWHERE = {
    "GRIDQ_DEVICE_BOOKS", "GRIDQ_ENGINE", "GRIDQ_FLOWER_PORT", "GRIDQ_GATEWAY_PORT", "GRIDQ_MODEL",
    "GRIDQ_SECRETS", "GRIDQ_SKIP_ENGINES",
}  # fmt: skip
"""Variables that are read elsewhere: by the gpu profile, by docker-compose.yml, by a test."""


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_command_and_option_that_a_page_shows_exists(page: Path) -> None:
    cli.load_commands()
    group = typer.main.get_group(cli.app)
    context = typer.Context(group)
    text = re.sub(r"\\\n", " ", page.read_text("utf-8"))
    blocks = re.findall(r"^ *```(?:console|bash|text)\n(.*?)^ *```", text, re.M | re.S)
    prose = re.sub(r"^ *```.*?^ *```", "", text, flags=re.M | re.S)
    shown = [line for block in blocks for line in block.splitlines()] + re.findall(r"`([^`]+)`", prose)
    for line in shown:
        for words in re.findall(r"(?:^|[ $(;|=])gridq ([a-z][^|;`#)]*)", line):
            name, *rest = (word.strip(",.") for word in words.split())
            if name not in group.list_commands(context):
                assert line.startswith(("#", "error")) or name in ("up:", "is"), line
                continue
            command = group.get_command(context, name)
            if rest and rest[0] in getattr(command, "commands", {}):
                command = command.commands[rest.pop(0)]
            options = {option for param in command.params for option in (*param.opts, *param.secondary_opts)}
            used = {word.partition("=")[0].strip(",:") for word in rest if word.startswith("--")}
            assert used - options - {"--help"} == set(), line


def test_every_function_on_the_walk_exists() -> None:
    """docs/architecture.md lists the walk of a job as `path:function`."""
    text = (DOCS / "architecture.md").read_text("utf-8")
    places = re.findall(r"`((?:gridq|workers)/[\w/]+\.(?:py|lua))(?::([\w.]+))?`", text)
    assert len([function for _, function in places if function]) >= 20
    for path, function in places:
        assert (ROOT / path).is_file(), path
        if function:
            source = (ROOT / path).read_text("utf-8")
            for part in function.split("."):
                assert re.search(rf"^\s*(?:async )?(?:def|class) {part}\b", source, re.M), (path, function)


def test_every_folder_has_a_row_in_the_architecture() -> None:
    rows = re.findall(
        r"^\| `((?:gridq|workers)/\w+/)` \|", (DOCS / "architecture.md").read_text("utf-8"), re.M
    )
    found = [path.parent for top in ("gridq", "workers") for path in (ROOT / top).glob("*/__init__.py")]
    assert sorted(rows) == sorted(f"{folder.relative_to(ROOT)}/" for folder in found)


def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    """A broken link or anchor, or a page outside of the navigation, is a warning; --strict fails on it."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    pages = sorted(tmp_path.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        html = page.read_text("utf-8")
        assert re.findall(r'<(?:script|link|img)\b[^>]*(?:src|href)="(?:https?:)?//[^"]*"', html) == [], (
            page.name
        )
        assert "<!-- generate:" not in html, page.name
