"""Seats made of a machine's programs, and reports about the others."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from gridq.errors import ConfigError
from tests.fakes.programs import PROGRAMS, FakePrograms
from workers.profiles.llm import LlmProfile
from workers.profiles.llm.capability import LlmCapability
from workers.profiles.llm.probe import probe
from workers.profiles.llm.programs.vendors.all_vendors import VENDOR_PROGRAMS

MODELS = [{"name": "sonnet", "families": ["claude"]}]


def table(cli: str = "claude", **fields: Any) -> dict[str, Any]:
    return {"name": cli, "cli": cli, "models": MODELS, **fields}


@pytest.fixture
def fakes(tmp_path: Path) -> FakePrograms:
    return FakePrograms(tmp_path / "bin", *PROGRAMS)


def test_a_table_makes_a_seat_of_one_slot(fakes: FakePrograms):
    report = probe([table(), table("codex")], fakes.environ)
    claude, codex = report.found
    assert (claude.name, claude.kind, claude.concurrency) == ("claude", "llm", 1)
    assert claude.note == "Claude Code 2.1.400, 1 model, on a subscription"
    assert claude.exclusive == f"claude {fakes.folder / '.claude'}"
    assert codex.exclusive == f"codex {fakes.folder / '.codex'}"
    capability = LlmCapability.model_validate(claude.capability)
    assert LlmProfile().queues(capability) == ["llm:sonnet", "llm:claude", "llm:any"]
    assert capability.billing == "subscription"
    assert claude.config["program"] == str(fakes.folder / "claude")
    assert not [why for why in report.missing if why.startswith("Seat")]


def test_every_known_program_makes_a_seat(fakes: FakePrograms):
    tables = [table(cli, tools=not program.proven) for cli, program in VENDOR_PROGRAMS.items()]
    report = probe(tables, fakes.environ)
    assert [offer.name for offer in report.found] == list(VENDOR_PROGRAMS)
    assert report.not_lent == []


def test_an_installed_program_is_not_lent_without_a_table(fakes: FakePrograms):
    report = probe([table("codex")], fakes.environ)
    assert [offer.name for offer in report.found] == ["codex"]
    assert len(report.not_lent) == len(PROGRAMS) - 1
    (claude,) = [what for what in report.not_lent if "Claude Code" in what]
    assert "is installed but not lent" in claude
    assert VENDOR_PROGRAMS["claude"].rule in claude
    (seat,) = tomllib.loads(claude.partition("\n")[2])["llm"]  # it can be pasted as it stands
    assert (seat["name"], seat["cli"]) == ("claude", "claude")
    assert not any("No [[llm]] seat" in what for what in report.missing)
    assert fakes.calls("claude") == []


def test_missing_logged_out_and_broken_programs_are_reported(tmp_path: Path):
    own = FakePrograms(tmp_path / "bin", "claude", "codex", "opencode")
    own.log_out("claude")
    own.log_out("codex")
    own.install("opencode", "import sys; sys.exit('Error: Cannot find module semver')")
    report = probe([table(cli) for cli in ("claude", "codex", "opencode", "gemini")], own.environ)
    assert report.found == []
    missing = " ".join(report.missing)
    assert "Seat 'claude': Claude Code is logged out; to log in, run: claude auth login" in missing
    assert "Seat 'codex': Codex is logged out; to log in, run: codex login" in missing
    assert "does not start: Error: Cannot find module semver" in missing
    assert "Seat 'gemini': Gemini CLI is not installed: there is no gemini on PATH" in missing


def test_a_key_may_stand_in_for_a_login(tmp_path: Path):
    own = FakePrograms(tmp_path / "bin", "claude")
    own.log_out("claude")
    report = probe([table(env=["ANTHROPIC_API_KEY"])], own.environ)
    assert [offer.name for offer in report.found] == ["claude"]


def install(folder: Path, cli: str, version: str) -> FakePrograms:
    own = FakePrograms(folder)
    own.install(cli, f"print('{cli} {version} (Fake)')")
    return own


@pytest.mark.parametrize("cli", [cli for cli, program in VENDOR_PROGRAMS.items() if program.proven])
@pytest.mark.parametrize(("step", "lent"), [(-1, False), (0, True), (1, True)])
def test_a_version_below_the_proven_one_is_not_lent_without_tools(
    cli: str, step: int, lent: bool, tmp_path: Path
):
    *parts, last = map(int, VENDOR_PROGRAMS[cli].proven.split("."))
    version = (
        f"{'.'.join(map(str, parts))}.{last + step}" if last + step >= 0 else f"{parts[0]}.{parts[1] - 1}.9"
    )
    own = install(tmp_path / "bin", cli, version)
    report = probe([table(cli)], own.environ)
    assert [offer.name for offer in report.found] == ([cli] if lent else [])
    if not lent:
        (reason,) = [each for each in report.missing if each.startswith("Seat")]
        assert f"{VENDOR_PROGRAMS[cli].title} {version} may read files of this machine" in reason
        assert f"update it to {VENDOR_PROGRAMS[cli].proven} or later, or set tools = true" in reason
    assert [offer.name for offer in probe([table(cli, tools=True)], own.environ).found] == [cli]


def test_a_program_that_nothing_is_proven_of_is_lent_with_tools_only(fakes: FakePrograms):
    report = probe([table("cursor")], fakes.environ)
    assert report.found == []
    assert any("Cursor 2.1.400 may read files" in why and "set tools = true" in why for why in report.missing)
    (note,) = [each for each in probe([], fakes.environ).not_lent if each.startswith("Cursor")]
    (seat,) = tomllib.loads(note.partition("\n")[2])["llm"]
    assert [offer.name for offer in probe([seat], fakes.environ).found] == ["cursor"]


def test_a_hanging_version_check_keeps_a_seat_with_tools_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("workers.profiles.llm.programs.discovery.VERSION_SECONDS", 0.3)
    monkeypatch.setattr("workers.profiles.llm.programs.discovery.LOGIN_SECONDS", 0.3)
    own = FakePrograms(tmp_path / "bin")
    own.install("claude", "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)")
    (offer,) = probe([table(tools=True)], own.environ).found
    assert "version not known" in offer.note
    report = probe([table()], own.environ)
    assert report.found == []
    assert any("Claude Code (version not known) may read files" in why for why in report.missing)
    (own.folder / "package.json").write_text('{"version": "2.1.999"}')
    assert "Claude Code 2.1.999" in probe([table()], own.environ).found[0].note


def test_two_logins_of_one_program_are_two_seats(fakes: FakePrograms, tmp_path: Path):
    tables = [table(), table(name="work", home=str(tmp_path / "work"))]
    first, second = probe(tables, fakes.environ).found
    assert first.exclusive != second.exclusive


@pytest.mark.parametrize("home", ["{bin}/.claude", "{bin}/./.claude", "{bin}/linked"])
def test_two_seats_on_one_login_are_refused_with_both_names(fakes: FakePrograms, home: str):
    (fakes.folder / ".claude").mkdir()
    (fakes.folder / "linked").symlink_to(fakes.folder / ".claude")
    tables = [table(), table(name="work", home=home.format(bin=fakes.folder))]
    with pytest.raises(ConfigError, match="'claude' and 'work' use one login") as caught:
        probe(tables, fakes.environ)
    assert caught.value.path == "llm[1]"


def test_a_home_named_by_the_environment_is_the_login(fakes: FakePrograms, tmp_path: Path):
    environ = {**fakes.environ, "CLAUDE_CONFIG_DIR": str(tmp_path / "there")}
    with pytest.raises(ConfigError, match="use one login"):
        probe([table(), table(name="work", home=str(tmp_path / "there"))], environ)


@pytest.mark.parametrize(
    ("wrong", "path"),
    [
        ({"cli": "cluade"}, "llm[0].cli"),
        ({"cli": 5}, "llm[0].cli"),
        ({"concurrency": 2}, "llm[0].concurrency"),
        ({"models": []}, "llm[0].models"),
        ({"models": [{"name": "any"}]}, "llm[0].models.0.name"),
        ({"url": "https://api.example.com/v1"}, "llm[0].url"),
        ({"key_env": "KEY"}, "llm[0].key_env"),
        ({"home": "relative"}, "llm[0].home"),
        ({"budget": 5}, "llm[0].budget"),
        ({"billing": "free"}, "llm[0].billing"),
        ({"silence": 0}, "llm[0].silence"),
        ({"env": "NAME"}, "llm[0].env"),
        ({"typo": 1}, "llm[0].typo"),
    ],
)
def test_a_wrong_table_names_its_place(wrong: dict[str, Any], path: str):
    with pytest.raises(ConfigError) as caught:
        probe([table(**wrong)], {})
    assert caught.value.path == path


def test_an_unknown_program_suggests_the_closest_name():
    with pytest.raises(ConfigError) as caught:
        probe([table(cli="gemni")], {})
    assert caught.value.details["fix"] == "use 'gemini'"


def test_two_slots_are_refused_with_the_reason():
    with pytest.raises(ConfigError) as caught:
        probe([table(concurrency=3)], {})
    assert "log its owner out" in str(caught.value.details["expected"])
