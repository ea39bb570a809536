"""Calls of seats to fake programs: input, answers and failures."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from gridq.errors import (
    GridError,
    ModelUnavailable,
    SeatDegraded,
    SeatRateLimited,
    SeatUnavailable,
    StageError,
)
from gridq.profiles.profile import StageContext
from tests.fakes.client_types import CHUNK, COMPLETION, EVENT, MESSAGE, valid
from tests.fakes.programs import FakePrograms
from tests.program_seats import PROGRAM_NAMES, WORDS, ask, failing, named, seat, stage

pytestmark = pytest.mark.usefixtures("on_path")


@pytest.fixture(params=PROGRAM_NAMES)
def cli(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_complete_answer_has_its_usage(cli: str):
    context = StageContext()
    answer = ask(seat(cli), cli, "echo", context)
    assert valid(COMPLETION, answer).choices[0].message.content == "so it goes on "
    assert answer["choices"][0]["finish_reason"] == "stop"
    used = context.usage
    assert (used.tokens_in, used.tokens_cached, used.tokens_out) == (7, 4, 5)
    assert used.micro_dollars is None  # a subscription has no price a call


def test_a_metered_login_has_the_cost_that_its_program_reports():
    context = StageContext()
    ask(seat("claude", billing="metered"), "claude", "echo", context)
    assert context.usage.micro_dollars == 12_500


def test_pieces_arrive_as_the_program_writes_them(cli: str):
    pieces: list[Any] = []
    context = StageContext(emit=pieces.append)
    answer = ask(seat(cli), cli, "echo", context, stream_options={"include_usage": True})
    assert all(valid(CHUNK, piece) for piece in pieces)
    texts = [piece["choices"][0]["delta"].get("content") for piece in pieces if piece["choices"]]
    assert "".join(filter(None, texts)) == "so it goes on " == answer["choices"][0]["message"]["content"]
    if cli not in ("codex", "opencode"):  # these tell their answers whole
        assert len(texts) > 4
    assert pieces[-1]["usage"]["prompt_tokens"] == 7


@pytest.mark.parametrize("cli", ["claude", "copilot"])
def test_an_anthropic_client_gets_answers_in_its_own_api_format(cli: str):
    body = {"model": named(cli, "echo"), "max_tokens": 50, "system": "Be brief.", "messages": WORDS}
    value = {"api": "anthropic", "path": "messages", "body": body}
    profile = seat(cli)
    answer = profile.run(stage("llm:api_request"), value, StageContext())
    assert valid(MESSAGE, answer).usage.cache_read_input_tokens == 4
    assert "so it goes on" in answer["content"][0]["text"]
    events: list[Any] = []
    profile.run(stage("llm:api_request"), value, StageContext(emit=events.append))
    assert all(valid(EVENT, event) for event in events)
    assert events[-1]["type"] == "message_stop"


@pytest.mark.parametrize("cli", ["claude", "copilot"])
def test_a_program_runs_the_stages_of_a_model(cli: str):
    profile = seat(cli)
    value = {"prompt": "so it goes", "model": named(cli, "echo")}
    assert profile.run(stage("llm:complete"), value, StageContext()) == "so it goes "
    pieces: list[Any] = []
    value = {"messages": "and on", "model": named(cli, "echo")}
    answer = profile.run(stage("llm:chat"), value, StageContext(emit=pieces.append))
    assert answer == {"role": "assistant", "content": "and on ", "finish_reason": "stop"}
    assert "".join(pieces) == "and on "
    counts = {key.partition("{")[0]: count for key, count in profile.metrics().items()}
    assert counts == {"jobs_routed_total": 2.0, "jobs_failed_total": 0.0}


def test_a_program_sees_its_prompt_and_little_else(
    cli: str, fakes: FakePrograms, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-secret")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("GRIDQ_BROKER_URL", "redis://:pw@host")
    messages = [{"role": "system", "content": "Be brief."}, *WORDS]
    ask(seat(cli), cli, "echo", messages=messages)
    call = fakes.calls(cli)[-1]
    assert not {"ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GRIDQ_BROKER_URL", "SECRET_THING"} & set(call["env"])
    assert (call["env"]["HOME"] == str(fakes.folder)) is (cli != "codex")
    assert "so it goes on" not in " ".join(call["argv"])
    assert "so it goes on" in call["prompt"]
    assert call["folder"] in ([], [".cursor"])
    assert not Path(call["cwd"]).exists()
    inputs = [call["prompt"], *call["files"].values()]
    assert sum("Be brief." in text for text in inputs) == 1


def test_a_long_prompt_goes_through():
    long = "word " * 400_000
    answer = ask(seat("claude"), "claude", "count", messages=[{"role": "user", "content": long}])
    assert answer["choices"][0]["message"]["content"] == "2000000"


def test_a_huge_answer_does_not_block():
    answer = ask(seat("claude"), "claude", "huge")
    assert len(answer["choices"][0]["message"]["content"]) == 10_000_000


def test_home_selects_the_login(cli: str, fakes: FakePrograms, tmp_path: Path):
    ask(seat(cli, home=str(tmp_path), tools=True), cli, "echo")
    environ = fakes.calls(cli)[-1]["env"]
    assert [name for name, value in environ.items() if value.startswith(str(tmp_path))]


@pytest.mark.parametrize(
    ("cli", "variables", "login", "others"),
    [
        ("codex", {"CODEX_HOME", "HOME"}, "auth.json", ("AGENTS.md", "skills/mine/SKILL.md", "config.toml")),
        (
            "gemini",
            {"GEMINI_CLI_HOME"},
            ".gemini/oauth_creds.json",
            (".gemini/GEMINI.md", ".gemini/commands/mine.toml", ".gemini/tmp/work/chats/session.jsonl"),
        ),
    ],
)
def test_without_tools_a_program_sees_only_the_login_in_its_home(
    cli: str, variables: set[str], login: str, others: tuple[str, ...], fakes: FakePrograms, tmp_path: Path
):
    for name in (login, *others):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"content of {name}")
    ask(seat(cli, home=str(tmp_path)), cli, "echo")
    call = fakes.calls(cli)[-1]
    assert {call["env"][name] for name in variables} == {f"{Path(call['cwd']).parent}/input/login"}
    assert call["files"][f"login/{login}"] == f"content of {login}"
    assert not {f"login/{name}" for name in others} & set(call["files"])
    assert (tmp_path / login).read_text() == f"content of {login}"


def test_gemini_keeps_the_login_method_of_its_owner_without_tools(fakes: FakePrograms, tmp_path: Path):
    (tmp_path / ".gemini").mkdir()
    settings = (
        '{"mcpServers": {"mine": {}}, // mine\n "security": {"auth": {"selectedType": "oauth-personal"}}}'
    )
    (tmp_path / ".gemini" / "settings.json").write_text(settings)
    ask(seat("gemini", home=str(tmp_path)), "gemini", "echo")
    used = json.loads(fakes.calls("gemini")[-1]["files"]["login/.gemini/settings.json"])
    assert used["security"] == {"auth": {"selectedType": "oauth-personal"}}
    assert "mcpServers" not in used
    assert used["tools"] == {"core": ["none"]}


@pytest.mark.parametrize("name", ["AvailableTools", "AgentSkills", "SubAgents", "read_file_ToolName"])
def test_gemini_finds_no_template_in_a_system_prompt(name: str, fakes: FakePrograms):
    messages = [{"role": "system", "content": f"${{{name}}} and ${{other}}"}, *WORDS]
    ask(seat("gemini"), "gemini", "echo", messages=messages)
    assert fakes.calls("gemini")[-1]["files"]["system.md"] == f"${{\u2060{name}}} and ${{other}}"


def test_opencode_sees_no_settings_of_its_owner_without_tools(fakes: FakePrograms):
    ask(seat("opencode"), "opencode", "echo")
    call = fakes.calls("opencode")[-1]
    used = json.loads(call["files"]["config/opencode/opencode.json"])
    assert used["agent"]["title"] == {"disable": True}  # it would be asked from another model
    assert call["env"]["XDG_CONFIG_HOME"] == f"{Path(call['cwd']).parent}/input/config"
    assert call["env"]["OPENCODE_DISABLE_PROJECT_CONFIG"] == "1"


def test_the_program_sees_the_variables_of_its_table(fakes: FakePrograms):
    ask(seat("claude", env=["SECRET_THING"]), "claude", "echo")
    assert fakes.calls("claude")[-1]["env"]["SECRET_THING"] == "never"


def test_tools_are_disabled_unless_the_owner_allows_them(cli: str, fakes: FakePrograms):
    ask(seat(cli), cli, "echo")
    forbidden = fakes.calls(cli)[-1]
    ask(seat(cli, tools=True), cli, "echo")
    allowed = fakes.calls(cli)[-1]
    assert (forbidden["argv"], sorted(forbidden["files"])) != (allowed["argv"], sorted(allowed["files"]))


@pytest.mark.parametrize(
    ("model", "kind", "state"),
    [
        ("limited", SeatDegraded, "rate limited"),
        ("logged-out", SeatDegraded, "logged out"),
        ("expired", SeatDegraded, "login expired"),
        ("no-credit", SeatDegraded, "no credit"),
        ("overloaded", SeatUnavailable, "overloaded"),
        ("no-model", ModelUnavailable, "model unknown"),
        ("too-long", StageError, "request refused"),
    ],
)
def test_failures_have_their_own_errors_and_states(model: str, kind: type[GridError], state: str):
    error = failing(seat("claude"), "claude", model)
    assert type(error) is kind, error
    assert error.details["state"] == state


def test_a_limit_with_a_reset_time_sets_the_cooldown(cli: str):
    error = failing(seat(cli), cli, "limited")
    assert type(error) is SeatDegraded
    least = 2 * 86400 if cli == "cursor" else 7300
    assert least < error.details["retry_after"] < 4 * 86400
    assert "rate limited until" in error.message


def test_a_logged_out_seat_says_how_to_log_in():
    assert "claude auth login" in str(failing(seat("claude"), "claude", "logged-out").details["fix"])


def test_a_program_that_retries_endlessly_is_ended():
    error = failing(seat("opencode"), "opencode", "overloaded")
    assert error.details["state"] == "overloaded"


def test_a_reset_time_of_day_sets_the_cooldown():
    error = failing(seat("claude"), "claude", "session")
    assert 7300 < error.details["retry_after"] < 7600


@pytest.mark.parametrize("model", ["empty", "hollow", "garbage"])
def test_an_empty_answer_is_a_failure(model: str):
    error = failing(seat("claude"), "claude", model)
    assert type(error) is SeatUnavailable, error
    if model == "garbage":
        assert "what is this" in error.details["reason"]


def test_a_crash_shows_the_last_output():
    error = failing(seat("claude"), "claude", "crash")
    assert type(error) is SeatUnavailable
    assert "Segmentation fault" in error.details["reason"]
    assert error.details["exit"] == -11


def test_an_error_shows_no_prompt_and_no_key():
    error = failing(seat("claude"), "claude", "quotes")
    record = str(error.to_record())
    assert "so it goes on" not in record
    assert "sk-ant" not in record
    assert error.details["exit"] == 3


@pytest.mark.parametrize("model", ["deaf", "noisy", "lingers"])
def test_unusual_program_output_is_accepted(model: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("workers.profiles.llm.programs.process.LINGER_SECONDS", 0.3)
    answer = ask(seat("claude"), "claude", model)
    assert answer["choices"][0]["message"]["content"].strip() in ("so it goes on", "nothing asked")


def test_a_missing_program_degrades_its_seat(fakes: FakePrograms, tmp_path: Path):
    own = FakePrograms(tmp_path / "own", "claude")
    profile = seat("claude", program=str(own.folder / "claude"))
    (own.folder / "claude").unlink()
    error = failing(profile, "claude", "echo")
    assert type(error) is SeatDegraded
    assert error.details["state"] == "broken install"


def test_a_rate_limit_without_a_time_goes_to_another_seat(fakes: FakePrograms, tmp_path: Path):
    own = FakePrograms(tmp_path / "own")
    text = "import sys; print('429 Too Many Requests', file=sys.stderr); sys.exit(len(sys.argv) > 2)"
    own.install("codex", text)
    profile = seat("codex", program=str(own.folder / "codex"))
    assert type(failing(profile, "codex", "echo")) is SeatRateLimited
    assert os.listdir(own.folder) == ["codex"]


def test_the_answer_follows_the_schema(fakes: FakePrograms):
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    wanted = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    pieces: list[Any] = []
    ask(seat("claude"), "claude", "echo", StageContext(emit=pieces.append), response_format=wanted)
    argv = fakes.calls("claude")[-1]["argv"]
    assert json.loads(argv[argv.index("--json-schema") + 1]) == schema
    ask(seat("codex"), "codex", "echo", response_format=wanted)
    assert json.loads(fakes.calls("codex")[-1]["files"]["schema.json"]) == schema


def test_unusual_characters_are_passed():
    answer = ask(seat("claude"), "claude", "echo", messages=[{"role": "user", "content": "a\ud800b\x00ü"}])
    assert answer["choices"][0]["message"]["content"] == "a?b\x00ü "


def test_a_failure_with_a_long_prompt_is_reported_quickly_without_the_prompt():
    line = "a line of the prompt that is long enough\n"
    with pytest.raises(GridError) as caught:
        ask(seat("claude"), "claude", "quotes", messages=[{"role": "user", "content": line * 200_000}])
    assert "a line of the prompt" not in str(caught.value.to_record())


@pytest.mark.parametrize(
    ("implementation", "value", "field"),
    [
        ("llm:embed", {"input": "so"}, "path"),
        ("llm:complete", {"prompt": "so", "raw": True}, "path"),
        ("llm:complete", {"prompt": "so", "stop": ["."]}, "stop"),
        ("llm:chat", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0]"),
    ],
)
def test_a_stage_asks_nothing_that_a_program_cannot_do(
    implementation: str, value: dict[str, Any], field: str, fakes: FakePrograms
):
    before = len(fakes.calls("claude"))
    with pytest.raises(StageError) as caught:
        seat("claude").run(stage(implementation), {**value, "model": "echo"}, StageContext())
    assert str(caught.value.details["param"]).startswith(field)
    assert len(fakes.calls("claude")) == before


def test_an_error_names_a_folder_that_cannot_be_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    error = failing(seat("claude"), "claude", "echo")
    assert type(error) is SeatUnavailable
    assert "Cannot create the folder" in error.message


def test_a_call_leaves_no_files_behind(fakes: FakePrograms):
    ask(seat("claude"), "claude", "echo")
    left = sorted((fakes.folder / ".cache" / "gridq" / "logins").iterdir())
    assert left
    assert all(path.suffix == ".lock" and path.stat().st_size == 0 for path in left)
