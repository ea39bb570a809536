"""The docs name everything there is."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

from gridq.config.settings import Settings
from gridq.errors import AgentJobsExceeded, AgentMoneyExceeded, TeamJobsExceeded, TeamMoneyExceeded
from gridq.graph.nodes import parse_seat
from gridq.limits.quotas_file import parse_seat as parse_quotas
from gridq.stages import load_builtin_specs
from workers.machine.seats import LocalTable
from workers.model_apis.model_catalogue import Model
from workers.owner.lend import Lend, Owners
from workers.profiles.gpu.capability import GpuConfig
from workers.profiles.llm.capability import DeclaredModel, LlmSeat
from workers.profiles.llm.programs.program_seats import is_program_table
from workers.profiles.llm.programs.seat_table import ProgramSeat
from workers.profiles.llm.programs.seat_table import parse_seat as parse_table
from workers.profiles.llm.seats_from_table import parse_seats as read_endpoints

ROOT = Path(__file__).parents[2]


def test_every_setting_is_documented_with_its_default() -> None:
    text = (ROOT / "docs" / "settings.md").read_text()
    for name, field in Settings.model_fields.items():
        row = next((line for line in text.splitlines() if f"`GRIDQ_{name.upper()}`" in line), None)
        assert row is not None, name
        if isinstance(field.default, int | float):
            assert f"| {field.default:g} |" in row or f"| {int(field.default)} |" in row, row


def test_every_built_in_stage_is_documented() -> None:
    text = (ROOT / "docs" / "stages.md").read_text()
    for spec in load_builtin_specs():
        described = spec["description"].strip().replace("|", r"\|")
        assert f"| `{spec['name']}` | {described} |" in text


def test_every_key_of_the_seats_file_is_documented() -> None:
    text = (ROOT / "docs" / "seats-file.md").read_text()
    for table in (LocalTable, LlmSeat, ProgramSeat, GpuConfig, Model, DeclaredModel, Lend):
        for name in table.model_fields:
            assert re.search(rf"`[^`]*\b{name}\b[^`]*`", text), (table.__name__, name)


@pytest.mark.parametrize(
    ("page", "programs"),
    [("seats.md", ["claude"]), ("seats-file.md", ["claude", "claude-work"])],
)
def test_the_seats_files_in_the_docs_are_right(page: str, programs: list[str]) -> None:
    text = (ROOT / "docs" / page).read_text()
    examples = [tomllib.loads(example) for example in re.findall(r"```toml\n(.*?)```", text, re.DOTALL)]
    tables = [table for example in examples for table in Owners().split(example).get("llm", [])]
    seats = [parse_table(table, "llm") for table in tables if is_program_table(table)]
    assert [seat.name for seat in seats] == programs
    read_endpoints(tables, {})


def test_the_page_for_a_seats_owner_stays_short() -> None:
    text = (ROOT / "docs" / "seats.md").read_text()
    assert len(text.splitlines()) <= 130
    assert len(text.split()) <= 1200


def test_the_quotas_file_of_the_docs_is_right_and_has_every_key() -> None:
    text = (ROOT / "docs" / "quotas.md").read_text()
    example = re.search(r"```toml\n(.*?)```", text, re.DOTALL)
    assert example is not None
    limits = parse_quotas(example[1], "quotas.toml")
    assert (set(limits.agents), set(limits.teams)) == ({"ann", "*"}, {"research"})
    for name in ["team", "dollars", "cents", "jobs", "period"]:
        assert re.search(rf"`(monthly_|budget_)?{name}`", text), name
    assert "`requests_per_minute`" in text
    for cls in (AgentMoneyExceeded, AgentJobsExceeded, TeamMoneyExceeded, TeamJobsExceeded):
        assert f"`{cls.code}`" in text


def test_every_operator_is_documented() -> None:
    text = (ROOT / "docs" / "graphs.md").read_text()
    operators = "Stage RemoteStage Const Sequential Parallel Branch Fanout Merge Retry Let"
    for op in operators.split():
        assert f"| `{op}` |" in text


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.json")), ids=lambda path: path.name)
def test_every_example_is_json_and_a_graph_or_an_input(path: Path) -> None:
    if "input" in path.name:
        assert isinstance(json.loads(path.read_text()), dict)
    else:
        parse_seat(path.read_text())


def test_the_tour_is_whole_and_gives_nothing_away() -> None:
    """It is a recording: no folder of the machine, no key, no token and no password stands in it."""
    text = (ROOT / "docs" / "tour.md").read_text("utf-8")
    for step in (
        "gridq up",
        "gridq join",
        "gridq run",
        "gridq cancel",
        "kill -9",
        "quota.agent_jobs",
        "gridq down",
    ):
        assert step in text, step
    assert not re.findall(r"(?<![\w.])/(?:tmp|work|root|home)\b", text)
    assert not re.findall(r"gq_[0-9a-f]{6,}|gqjoin_|redis://[^ ]*@", text)
    assert "docs/tour.md" in (ROOT / "README.md").read_text("utf-8")
